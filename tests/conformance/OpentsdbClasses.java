import com.fasterxml.jackson.core.JsonGenerator;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import net.opentsdb.core.SimpleHistogram;
import net.opentsdb.core.Tags;
import net.opentsdb.meta.Annotation;
import net.opentsdb.meta.TSMeta;
import net.opentsdb.meta.UIDMeta;
import net.opentsdb.rollup.RollupInterval;
import net.opentsdb.rollup.RollupUtils;
import net.opentsdb.utils.JSON;

/** Answers questions to OpenTSDB's own classes, a line for a line: "= answer", or "! error's text". Bytes are in hex. */
public class OpentsdbClasses {
  private static final HexFormat HEX = HexFormat.of();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);  // where the classes log
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      String answer;
      try {
        answer = "= " + ask(line.split(" "));
      } catch (InvocationTargetException e) {
        answer = "! " + e.getCause().getMessage();
      } catch (Exception e) {
        answer = "! " + e.getMessage();
      }
      answers.println(HEX.formatHex(answer.getBytes(StandardCharsets.UTF_8)));
      answers.flush();
    }
  }

  private static String ask(String[] words) throws Exception {
    switch (words[0]) {
      case "long":
        return Long.toString(Tags.parseLong(latin(words[1])));
      case "double":
        return Long.toHexString(Double.doubleToRawLongBits(Double.parseDouble(latin(words[1]))));
      case "fits":
        return Boolean.toString(Tags.fitsInFloat(latin(words[1])));
      case "name":
        Tags.validateString("name", latin(words[1]));
        return "";
      case "order":
        return order(new String(HEX.parseHex(words[1]), StandardCharsets.UTF_8).split("\n", -1));
      case "string":
        return string(JSON.parseToObject(HEX.parseHex(words[1]), String.class));
      case "note":
        return stored(JSON.parseToObject(HEX.parseHex(words[1]), Annotation.class));
      case "uidmeta":
        return stored(JSON.parseToObject(HEX.parseHex(words[1]), UIDMeta.class));
      case "tsmeta":
        return stored(JSON.parseToObject(HEX.parseHex(words[1]), TSMeta.class));
      case "notequalifier":
        return hex(hidden(Annotation.class, "getQualifier", long.class).invoke(null, Long.parseLong(words[1])));
      case "histogram":
        return histogram(words);
      case "readhistogram":
        SimpleHistogram read = new SimpleHistogram(42);
        read.fromHistogram(HEX.parseHex(words[1]), true);
        return hex(read.histogram(true));
      case "rollup":
        return rollup(words[1], words[2], Long.parseLong(words[3]), Short.parseShort(words[4]));
      default:
        throw new IllegalArgumentException("no such question: " + words[0]);
    }
  }

  private static String order(String[] names) {
    HashMap<String, String> map = new HashMap<>();
    for (String name : names) {
      map.put(name, name);
    }
    return String.join("\n", map.keySet());
  }

  private static String string(String text) throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    JsonGenerator json = JSON.getFactory().createGenerator(out);
    json.writeString(text);
    json.close();
    return hex(out.toByteArray());
  }

  private static String stored(Object object) throws Exception {
    return hex(hidden(object.getClass(), "getStorageJSON").invoke(object));
  }

  private static String histogram(String[] words) {
    SimpleHistogram histogram = new SimpleHistogram(42);
    histogram.setUnderflow(Long.parseLong(words[1]));
    histogram.setOverflow(Long.parseLong(words[2]));
    for (int at = 3; at < words.length; at += 3) {
      histogram.addBucket(
          Float.parseFloat(words[at]), Float.parseFloat(words[at + 1]), Long.parseLong(words[at + 2]));
    }
    return hex(histogram.histogram(true));
  }

  private static String rollup(String name, String span, long time, short flags) {
    RollupInterval interval =
        RollupInterval.builder().setTable("t").setPreAggregationTable("p").setInterval(name).setRowSpan(span).build();
    long base = RollupUtils.getRollupBasetime(time, interval) & 0xFFFFFFFFL;
    byte[] qualifier = RollupUtils.buildRollupQualifier(time, flags, 1, interval);
    return interval.getIntervals() + " " + base + " " + hex(qualifier);
  }

  private static Method hidden(Class<?> type, String name, Class<?>... arguments) throws Exception {
    Method method = type.getDeclaredMethod(name, arguments);
    method.setAccessible(true);
    return method;
  }

  private static String latin(String hex) {
    return new String(HEX.parseHex(hex), StandardCharsets.ISO_8859_1);
  }

  private static String hex(Object bytes) {
    return HEX.formatHex((byte[]) bytes);
  }
}
