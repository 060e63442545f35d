import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import net.opentsdb.core.DownsamplingSpecification;
import net.opentsdb.core.TSQuery;
import net.opentsdb.core.TSSubQuery;
import net.opentsdb.query.filter.TagVFilter;
import net.opentsdb.utils.DateTime;
import net.opentsdb.utils.JSON;

/**
 * Reads requests as OpenTSDB's own classes do, a line for a line of words in hex: "= answer", or "! status text". Where a
 * class only says what is wrong, the status is 500 while text is parsed, and 400 while what it said is checked.
 */
public class OpentsdbRequests {
  private static final HexFormat HEX = HexFormat.of();
  private static int status;

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);  // where the classes log
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      String answer;
      try {
        status = 500;
        answer = "= " + ask(line.split(" ", -1));
      } catch (InvocationTargetException e) {
        answer = refusal(e.getCause());
      } catch (Exception e) {
        answer = refusal(e);
      }
      answers.println(HEX.formatHex(answer.getBytes(StandardCharsets.UTF_8)));
      answers.flush();
    }
  }

  private static String refusal(Throwable e) throws Exception {
    int code = status;
    if (e.getClass().getSimpleName().equals("BadRequestException")) {
      Method method = e.getClass().getMethod("getStatus");
      method.setAccessible(true);
      Object said = method.invoke(e);
      code = (int) said.getClass().getMethod("getCode").invoke(said);
    }
    return "! " + code + " " + (e instanceof NullPointerException ? "NPE" : e.getMessage());
  }

  private static String ask(String[] words) throws Exception {
    switch (words[0]) {
      case "m":
        return json(shown(checked(parsed("parseMTypeSubQuery", words[1]))));
      case "tsuid":
        return json(shown(checked(parsed("parseTsuidTypeSubQuery", words[1]))));
      case "equal":
        return "" + parsed("parseMTypeSubQuery", words[1]).equals(parsed("parseMTypeSubQuery", words[2]));
      case "body":
        return body(HEX.parseHex(words[1]));
      case "time":
        status = 400;
        return "" + DateTime.parseDateTimeString(text(words[1]), words[2].isEmpty() ? null : text(words[2]));
      case "filter":
        return filter(text(words[1]), text(words[2]), text(words[3]));
      case "regex":
        return "" + Pattern.compile(text(words[1])).matcher(text(words[2])).find();
      case "number":
        return number(Double.longBitsToDouble(Long.parseLong(words[1])));
      default:
        throw new IllegalArgumentException("no such question: " + words[0]);
    }
  }

  private static TSSubQuery parsed(String how, String hex) throws Exception {
    TSQuery query = new TSQuery();
    Method parse =
        Class.forName("net.opentsdb.tsd.QueryRpc").getDeclaredMethod(how, String.class, TSQuery.class);
    parse.setAccessible(true);
    parse.invoke(null, text(hex), query);
    return query.getQueries().get(0);
  }

  private static TSSubQuery checked(TSSubQuery sub) {
    status = 400;
    sub.validateAndSetQuery();
    return sub;
  }

  private static String body(byte[] content) throws Exception {
    TSQuery query;
    status = 400;
    try {
      query = JSON.parseToObject(new String(content, StandardCharsets.UTF_8), TSQuery.class);
    } catch (IllegalArgumentException e) {
      return "unable to parse";
    }
    query.setQueries(new ArrayList<>(new LinkedHashSet<>(query.getQueries())));
    query.validateAndSetQuery();
    Map<String, Object> map = new LinkedHashMap<>();
    map.put("start", query.startTime());
    map.put("end", query.getEnd() == null || query.getEnd().isEmpty() ? null : query.endTime());
    map.put("timezone", query.getTimezone());
    map.put(
        "flags",
        List.of(
            query.getMsResolution(), query.getShowTSUIDs(), query.getShowQuery(), query.getShowStats(),
            query.getShowSummary(), query.getNoAnnotations(), query.getGlobalAnnotations(), query.getDelete(),
            query.overrideByteLimit(), query.overrideDataPointLimit()));
    List<Object> subs = new ArrayList<>();
    for (TSSubQuery sub : query.getQueries()) {
      subs.add(shown(sub));
    }
    map.put("queries", subs);
    return json(map);
  }

  private static Map<String, Object> shown(TSSubQuery sub) {
    Map<String, Object> map = new LinkedHashMap<>();
    map.put("aggregator", sub.getAggregator());
    map.put("metric", sub.getMetric());
    map.put("tsuids", sub.getTsuids());
    map.put("downsample", sub.getDownsample());
    DownsamplingSpecification downsampler = sub.downsamplingSpecification();
    if (downsampler != DownsamplingSpecification.NO_DOWNSAMPLER) {
      map.put("interval", downsampler.getInterval());
      map.put("function", downsampler.getFunction().toString());
      map.put("fill", downsampler.getFillPolicy().toString());
      map.put("calendar", downsampler.useCalendar() ? downsampler.getTimezone().getID() : null);
    }
    map.put("rate", sub.getRate());
    map.put("rateOptions", sub.getRateOptions());
    map.put("filters", sub.getFilters());
    map.put("explicitTags", sub.getExplicitTags());
    map.put("percentiles", sub.getPercentiles());
    map.put("showHistogramBuckets", sub.getShowHistogramBuckets());
    map.put("preAggregate", sub.isPreAggregate());
    map.put("rollupUsage", sub.getRollupUsage());
    map.put("useFuzzyFilter", sub.getUseFuzzyFilter());
    map.put("useMultiGets", sub.getUseMultiGets());
    map.put("tags", sub.getTags());
    return map;
  }

  private static String filter(String type, String expression, String value) throws Exception {
    TagVFilter filter =
        TagVFilter.Builder().setTagk("k").setType(type).setFilter(expression).build();
    Map<String, String> tags = new HashMap<>();
    tags.put("k", value);
    return "" + filter.match(tags).join();
  }

  private static String number(double value) throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    JsonGenerator json = JSON.getFactory().createGenerator(out);
    json.writeNumber(value);
    json.close();
    return out.toString(StandardCharsets.UTF_8);
  }

  private static String json(Object object) throws Exception {
    return new ObjectMapper().writeValueAsString(object);
  }

  private static String text(String hex) {
    return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
  }
}
