import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * A NameNode and DataNodes in one process, until stdin ends.
 *
 * <p>Arguments: a folder; how many DataNodes; then settings, as name=value. A folder that holds a
 * cluster is gone on with. Says "ready RPC-PORT HTTP-PORT".
 */
public final class HdfsCluster {
  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[0]);
    Configuration settings = new Configuration();
    for (int at = 2; at < arguments.length; at++) {
      String[] setting = arguments[at].split("=", 2);
      settings.set(setting[0], setting[1]);
    }
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings, folder)
            .numDataNodes(Integer.parseInt(arguments[1]))
            .format(!new File(folder, "name-0-1").exists())
            .nameNodePort(settings.getInt("launcher.rpc-port", 0))
            .nameNodeHttpPort(settings.getInt("launcher.http-port", 0))
            .skipFsyncForTesting(false) // the edit log is synced, as a real one is
            .build();
    cluster.waitActive();
    System.out.println("ready " + cluster.getNameNodePort() + " " + cluster.getNameNode(0).getHttpAddress().getPort());
    while (System.in.read() != -1) {}
    cluster.shutdown();
    System.exit(0);
  }
}
