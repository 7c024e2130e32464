import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A NameNode and DataNodes in one process, until it is killed.
 *
 * <p>Arguments: a folder; the ports of the NameNode for RPC and HTTP; how many DataNodes; then
 * settings, as name=value. A folder that holds a cluster is gone on with. Says "ready".
 *
 * <p>With the setting kdc.port there is a KDC beside them, without whose tickets nobody gets in:
 * then the folder "test" belongs to the principal "me", whose keytab is "me.keytab", and "krb5.conf"
 * says where the KDC is.
 *
 * <p>With the setting failover.port there are two NameNodes, the second at second.rpc.port and
 * second.http.port: whoever connects to the port makes the other one active, and is told "done".
 *
 * <p>With the setting yarn.clients there is a YARN of one node beside them; the folder of that name
 * gets the settings that its clients need.
 */
public final class HdfsCluster {
  public static void main(String[] arguments) throws Exception {
    File folder = new File(arguments[0]);
    Configuration settings = new Configuration();
    for (int at = 4; at < arguments.length; at++) {
      String[] setting = arguments[at].split("=", 2);
      settings.set(setting[0], setting[1]);
    }
    boolean secure = settings.get("kdc.port") != null;
    if (secure) {
      startKdc(folder, settings);
    }
    int rpcPort = Integer.parseInt(arguments[1]);
    int httpPort = Integer.parseInt(arguments[2]);
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(settings, folder);
    boolean two = settings.get("failover.port") != null;
    if (two) {
      builder.nnTopology(twoNameNodes(rpcPort, httpPort, settings));
    } else {
      builder.nameNodePort(rpcPort).nameNodeHttpPort(httpPort);
    }
    MiniDFSCluster cluster =
        builder
            .numDataNodes(Integer.parseInt(arguments[3]))
            .format(!new File(folder, "name-0-1").exists())
            .skipFsyncForTesting(false) // the log of edits is synced, as that of a real one
            .build();
    cluster.waitActive();
    if (secure) {
      Path test = new Path("/test");
      cluster.getFileSystem().mkdirs(test);
      cluster.getFileSystem().setOwner(test, "me", "me");
    }
    if (two) {
      cluster.transitionToActive(0);
      System.out.println("ready");
      failOver(cluster, settings.getInt("failover.port", 0));
    }
    if (settings.get("yarn.clients") != null) {
      startYarn(cluster, folder, settings);
    }
    System.out.println("ready");
    Thread.currentThread().join();
  }

  private static MiniDFSNNTopology twoNameNodes(
      int rpcPort, int httpPort, Configuration settings) {
    MiniDFSNNTopology.NNConf first =
        new MiniDFSNNTopology.NNConf("nn1").setIpcPort(rpcPort).setHttpPort(httpPort);
    MiniDFSNNTopology.NNConf second =
        new MiniDFSNNTopology.NNConf("nn2")
            .setIpcPort(settings.getInt("second.rpc.port", 0))
            .setHttpPort(settings.getInt("second.http.port", 0));
    return new MiniDFSNNTopology()
        .addNameservice(new MiniDFSNNTopology.NSConf("two").addNN(first).addNN(second));
  }

  private static void failOver(MiniDFSCluster cluster, int port) throws Exception {
    int active = 0;
    try (ServerSocket listener = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
      while (true) {
        try (Socket asked = listener.accept()) {
          cluster.transitionToStandby(active);
          active = 1 - active;
          cluster.transitionToActive(active);
          asked.getOutputStream().write("done".getBytes());
        }
      }
    }
  }

  private static void startYarn(MiniDFSCluster cluster, File folder, Configuration settings)
      throws Exception {
    settings.set("fs.defaultFS", cluster.getFileSystem().getUri().toString());
    settings.set("yarn.nodemanager.vmem-check-enabled", "false");
    settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99");
    settings.set("yarn.nodemanager.resource.memory-mb", "8192");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    System.setProperty("test.build.data", new File(folder, "yarn").getPath());
    MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
    yarn.init(settings);
    yarn.start();
    yarn.waitForNodeManagersToConnect(60_000);
    Configuration known = new Configuration(yarn.getConfig());
    known.unset("net.topology.node.switch.mapping.impl"); // a class that clients do not have
    File clients = new File(settings.get("yarn.clients"));
    clients.mkdirs();
    write(known, new File(clients, "core-site.xml"));
    write(known, new File(clients, "yarn-site.xml"));
  }

  private static void write(Configuration settings, File file) throws IOException {
    try (OutputStream to = new FileOutputStream(file)) {
      settings.writeXml(to);
    }
  }

  private static void startKdc(File folder, Configuration settings) throws Exception {
    Properties properties = MiniKdc.createConf();
    properties.setProperty("kdc.port", settings.get("kdc.port"));
    folder.mkdirs();
    MiniKdc kdc = new MiniKdc(properties, folder);
    kdc.start();
    java.nio.file.Files.copy(
        kdc.getKrb5conf().toPath(), new File(folder, "krb5.conf").toPath());
    String keytab = new File(folder, "services.keytab").getPath();
    kdc.createPrincipal(new File(keytab), "hdfs/localhost", "HTTP/localhost");
    kdc.createPrincipal(new File(folder, "me.keytab"), "me");
    String service = "hdfs/localhost@" + kdc.getRealm();
    for (String daemon : new String[] {"dfs.namenode", "dfs.datanode"}) {
      settings.set(daemon + ".kerberos.principal", service);
      settings.set(daemon + ".keytab.file", keytab);
    }
    settings.set("dfs.web.authentication.kerberos.principal", "HTTP/localhost@" + kdc.getRealm());
    settings.set("dfs.web.authentication.kerberos.keytab", keytab);
    settings.set("hadoop.security.authentication", "kerberos");
    settings.set("hadoop.security.authorization", "true");
    settings.set("dfs.block.access.token.enable", "true");
    settings.set("dfs.data.transfer.protection", "authentication");
    settings.set("ignore.secure.ports.for.testing", "true"); // HTTP, and ports above 1023
    UserGroupInformation.setConfiguration(settings);
    UserGroupInformation.loginUserFromKeytab(service, keytab);
  }
}
