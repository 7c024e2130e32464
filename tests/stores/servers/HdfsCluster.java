import java.io.File;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * A NameNode and DataNodes in one process, until it is killed.
 *
 * <p>Arguments: a folder; the ports of the NameNode for RPC and HTTP; how many DataNodes; then
 * settings, as name=value. A folder that holds a cluster is gone on with. Says "ready".
 *
 * <p>With the setting kdc.port there is a KDC beside them, without whose tickets nobody gets in:
 * then the folder "test" belongs to the principal "me", whose keytab is "me.keytab", and "krb5.conf"
 * says where the KDC is.
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
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings, folder)
            .nameNodePort(Integer.parseInt(arguments[1]))
            .nameNodeHttpPort(Integer.parseInt(arguments[2]))
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
    System.out.println("ready");
    Thread.currentThread().join();
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
