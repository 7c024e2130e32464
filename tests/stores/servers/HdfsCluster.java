import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A NameNode and DataNodes in one process, until it is killed.
 *
 * <p>Arguments: a folder; the ports of the NameNode for RPC and HTTP; how many DataNodes; then
 * settings, as name=value. A folder that holds a cluster is gone on with. Says "ready".
 */
public final class HdfsCluster {
  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[0]);
    Configuration settings = new Configuration();
    for (int at = 4; at < arguments.length; at++) {
      String[] setting = arguments[at].split("=", 2);
      settings.set(setting[0], setting[1]);
    }
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings, folder)
            .nameNodePort(Integer.parseInt(arguments[1]))
            .nameNodeHttpPort(Integer.parseInt(arguments[2]))
            .numDataNodes(Integer.parseInt(arguments[3]))
            .format(!new File(folder, "name-0-1").exists())
            .skipFsyncForTesting(false) // the log of edits is synced, as that of a real one
            .build();
    cluster.waitActive();
    System.out.println("ready");
    Thread.currentThread().join();
  }
}
