import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.TimeZone;
import net.opentsdb.core.AggregationIterator;
import net.opentsdb.core.Aggregator;
import net.opentsdb.core.Aggregators;
import net.opentsdb.core.DataPoint;
import net.opentsdb.core.DownsamplingSpecification;
import net.opentsdb.core.FillPolicy;
import net.opentsdb.core.RateOptions;
import net.opentsdb.core.SeekableView;

/**
 * Has OpenTSDB's own iterators downsample, rate and merge series that come as text, a question a line:
 * scan start, scan end, query start, query end (all ms), aggregator, downsampler or -, time zone or -, calendar or -,
 * rate options (counter,max,reset,drop) or -, series. A series is time:i42,time:d3ff0000000000000,… and ends in a comma.
 */
public class OpentsdbNumbers {
  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);  // where the classes log
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      try {
        answers.println("= " + answer(line.split(" ")));
      } catch (InvocationTargetException e) {
        answers.println("! " + e.getCause());
      } catch (Exception e) {
        answers.println("! " + e);
      }
      answers.flush();
    }
  }

  private static String answer(String[] words) throws Exception {
    long scanStart = Long.parseLong(words[0]);
    long scanEnd = Long.parseLong(words[1]);
    SeekableView[] views = new SeekableView[words.length - 9];
    for (int i = 0; i < views.length; i++) {
      SeekableView view = new Given(words[9 + i]);
      if (!words[5].equals("-")) {
        view = downsampled(view, words, scanStart, scanEnd);
      }
      if (!words[8].equals("-")) {
        String[] options = words[8].split(",");
        view = (SeekableView) hidden("RateSpan", SeekableView.class, RateOptions.class).newInstance(view,
            new RateOptions(options[0].equals("true"), Long.parseLong(options[1]), Long.parseLong(options[2]),
                options[3].equals("true")));
      }
      views[i] = view;
    }
    Aggregator aggregator = Aggregators.get(words[4]);
    Method interpolation = Aggregator.class.getDeclaredMethod("interpolationMethod");
    interpolation.setAccessible(true);
    AggregationIterator merged = new AggregationIterator(views, scanStart, scanEnd, aggregator,
        (Aggregators.Interpolation) interpolation.invoke(aggregator), !words[8].equals("-"));
    StringBuilder text = new StringBuilder();
    while (merged.hasNext()) {
      DataPoint point = merged.next();
      text.append(point.timestamp()).append(point.isInteger()
          ? ":i" + point.longValue()
          : ":d" + Long.toHexString(Double.doubleToRawLongBits(point.doubleValue()))).append(",");
    }
    return text.toString();
  }

  private static SeekableView downsampled(SeekableView view, String[] words, long scanStart, long scanEnd)
      throws Exception {
    DownsamplingSpecification how = new DownsamplingSpecification(words[5]);
    if (!words[6].equals("-")) {
      how.setTimezone(TimeZone.getTimeZone(words[6]));
    }
    if (!words[7].equals("-")) {
      how.setUseCalendar(true);
    }
    long start = Long.parseLong(words[2]);
    long end = Long.parseLong(words[3]);
    if (how.getFillPolicy() == FillPolicy.NONE) {
      return (SeekableView) hidden("Downsampler", SeekableView.class, DownsamplingSpecification.class, long.class,
          long.class).newInstance(view, how, start, end);
    }
    return (SeekableView) hidden("FillingDownsampler", SeekableView.class, long.class, long.class,
        DownsamplingSpecification.class, long.class, long.class).newInstance(view, scanStart, scanEnd, how, start, end);
  }

  private static Constructor<?> hidden(String name, Class<?>... of) throws Exception {
    Constructor<?> found = Class.forName("net.opentsdb.core." + name).getDeclaredConstructor(of);
    found.setAccessible(true);
    return found;
  }

  /** The points of one series, and each of them in turn. */
  private static class Given implements SeekableView, DataPoint {
    private final long[] times;
    private final boolean[] whole;
    private final long[] bits;
    private int at = -1;

    Given(String text) {
      String[] points = text.split(",");
      int count = text.equals(",") ? 0 : points.length;
      times = new long[count];
      whole = new boolean[count];
      bits = new long[count];
      for (int i = 0; i < count; i++) {
        int colon = points[i].indexOf(':');
        times[i] = Long.parseLong(points[i].substring(0, colon));
        whole[i] = points[i].charAt(colon + 1) == 'i';
        String value = points[i].substring(colon + 2);
        bits[i] = whole[i] ? Long.parseLong(value) : Long.parseUnsignedLong(value, 16);
      }
    }

    public boolean hasNext() {
      return at + 1 < times.length;
    }

    public DataPoint next() {
      at++;
      return this;
    }

    public void remove() {
      throw new UnsupportedOperationException();
    }

    public void seek(long time) {
      at = -1;
      while (hasNext() && times[at + 1] < time) {
        at++;
      }
    }

    public long timestamp() {
      return times[at];
    }

    public boolean isInteger() {
      return whole[at];
    }

    public long longValue() {
      return bits[at];
    }

    public double doubleValue() {
      return Double.longBitsToDouble(bits[at]);
    }

    public double toDouble() {
      return whole[at] ? (double) bits[at] : doubleValue();
    }

    public long valueCount() {
      return 1;
    }
  }
}
