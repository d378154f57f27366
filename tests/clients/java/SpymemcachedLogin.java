// Tests spymemcached's login with a running server that requires SASL. TODANA_ADDRESS is its
// address.

import java.net.InetSocketAddress;
import java.util.List;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;

public final class SpymemcachedLogin {
    // The logging library drops loggers without a reference, together with their level.
    static final Logger LOGGER = Logger.getLogger("net.spy.memcached");

    static MemcachedClient client(String password, long timeout) throws Exception {
        String[] address = System.getenv("TODANA_ADDRESS").split(":");
        PlainCallbackHandler handler = new PlainCallbackHandler(System.getenv("TODANA_USER"), password);
        return new MemcachedClient(
            new ConnectionFactoryBuilder()
                .setProtocol(ConnectionFactoryBuilder.Protocol.BINARY)
                .setAuthDescriptor(new AuthDescriptor(new String[] {"PLAIN"}, handler))
                .setOpTimeout(timeout)
                .build(),
            List.of(new InetSocketAddress(address[0], Integer.parseInt(address[1]))));
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        LOGGER.setLevel(Level.OFF);
        String password = System.getenv("TODANA_PASSWORD");
        MemcachedClient known = client(password, 30_000);
        if (!known.set("java", 0, "value").get() || !"value".equals(known.get("java"))) {
            throw new AssertionError("the right password is refused");
        }
        known.shutdown();
        // The client repeats the refused login until the timeout of its operation.
        MemcachedClient stranger = client(password + "x", 1_000);
        try {
            throw new AssertionError("the wrong password is accepted: "
                + stranger.get("java"));
        } catch (RuntimeException expected) {
            System.out.println("2 of 2");
        }
        stranger.shutdown();
        System.exit(0);
    }
}
