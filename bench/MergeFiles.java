import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.CompactionState;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;

/**
 * Has HBase write out what it holds of a table in memory, make a major compaction, and put away what that replaced.
 * (Asked for it through Thrift, HBase 2.6.1 answers and does nothing.)
 */
public final class MergeFiles {
    private static final long WAIT_MS = 600_000;
    private static final long LOOK_MS = 200;

    private MergeFiles() {
    }

    public static void main(String[] words) throws Exception {
        TableName table = TableName.valueOf(words[0]);
        try (Connection connection = ConnectionFactory.createConnection(HBaseConfiguration.create());
             Admin admin = connection.getAdmin()) {
            admin.flush(table);
            long before = admin.getLastMajorCompactionTimestamp(table);
            long deadline = System.currentTimeMillis() + WAIT_MS;
            admin.majorCompact(table);
            while (admin.getLastMajorCompactionTimestamp(table) == before
                   || admin.getCompactionState(table) != CompactionState.NONE) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("no major compaction within " + WAIT_MS + " ms");
                }
                Thread.sleep(LOOK_MS);
            }
            admin.disableTable(table);  // a region that closes puts away the files that were replaced
            admin.enableTable(table);
        }
    }
}
