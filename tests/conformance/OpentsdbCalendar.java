import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.TimeZone;
import net.opentsdb.utils.DateTime;

/** Where OpenTSDB has buckets by wall clock begin. A line each: a time in ms, a number, its unit, a time zone. */
public class OpentsdbCalendar {
  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);  // where the classes log
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    StringBuilder all = new StringBuilder();
    for (String line; (line = questions.readLine()) != null; ) {
      String[] words = line.split(" ");
      all.append(DateTime.previousInterval(Long.parseLong(words[0]), Integer.parseInt(words[1]),
          DateTime.unitsToCalendarType(words[2]), TimeZone.getTimeZone(words[3])).getTimeInMillis());
      all.append('\n');
    }
    answers.print(all);
    answers.flush();
  }
}
