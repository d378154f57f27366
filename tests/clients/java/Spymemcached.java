// Tests spymemcached with a running server. TODANA_ADDRESS is its address.
// TODANA_PROTOCOL selects the protocol: text or binary.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.transcoders.SerializingTranscoder;

public final class Spymemcached {
    static final boolean BINARY = "binary".equals(System.getenv("TODANA_PROTOCOL"));
    // The logging library drops loggers without a reference, together with their level.
    static final Logger LOGGER = Logger.getLogger("net.spy");
    static MemcachedClient client;
    static InetSocketAddress server;

    public static void main(String[] arguments) throws Exception {
        String[] address = System.getenv("TODANA_ADDRESS").split(":");
        server = new InetSocketAddress(address[0], Integer.parseInt(address[1]));
        // The client would log the errors that these checks cause.
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        LOGGER.setLevel(Level.OFF);
        // The client's own limit of a megabyte is raised, so that large values reach the server.
        SerializingTranscoder transcoder = new SerializingTranscoder(4 << 20);
        client = new MemcachedClient(
            new ConnectionFactoryBuilder()
                .setProtocol(BINARY ? ConnectionFactoryBuilder.Protocol.BINARY : ConnectionFactoryBuilder.Protocol.TEXT)
                .setOpTimeout(10_000)
                .setTranscoder(transcoder)
                .build(),
            List.of(server));

        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("any bytes come back", Spymemcached::anyBytesComeBack);
        checks.put("a million bytes come back", Spymemcached::aMillionBytesComeBack);
        checks.put("a value above the limit is refused", Spymemcached::aValueAboveTheLimitIsRefused);
        checks.put("add, replace, append, prepend", Spymemcached::addReplaceAppendPrepend);
        checks.put("counting", Spymemcached::counting);
        checks.put("compare and set", Spymemcached::compareAndSet);
        checks.put("delete", Spymemcached::delete);
        checks.put("many at once", Spymemcached::manyAtOnce);
        checks.put("time to live and touch", Spymemcached::timeToLiveAndTouch);
        checks.put("long keys and foreign letters", Spymemcached::longKeysAndForeignLetters);
        checks.put("version, statistics, flush", Spymemcached::versionStatisticsFlush);
        for (Map.Entry<String, Check> check : checks.entrySet()) {
            try {
                equal(client.flush().get(), true);
                check.getValue().run();
            } catch (Throwable error) {
                System.err.print(check.getKey() + ": ");
                error.printStackTrace();
                // Without this call, the client's threads would keep the process running.
                System.exit(1);
            }
        }
        client.shutdown(10, TimeUnit.SECONDS);
        System.out.println(checks.size() + " of " + checks.size());
    }

    static void anyBytesComeBack() throws Exception {
        byte[] everyByte = new byte[256 * 16];
        for (int n = 0; n < everyByte.length; n++) {
            everyByte[n] = (byte) n;
        }
        for (byte[] value : List.of(bytes("value"), bytes(""), everyByte, bytes("a\r\nEND\r\nVALUE x 0 1\r\n"))) {
            equal(client.set("key", 0, value).get(), true);
            equal(Arrays.equals((byte[]) client.get("key"), value), true);
        }
        for (Object value : List.of("text", 42, 1L << 40, 2.5, true, new ArrayList<>(List.of(1, "two")))) {
            equal(client.set("key", 0, value).get(), true);
            equal(client.get("key"), value);
        }
        equal(client.get("absent"), null);
    }

    static void aMillionBytesComeBack() throws Exception {
        byte[] value = new byte[1_000_000];
        new Random(1).nextBytes(value);
        equal(client.set("large", 0, value).get(), true);
        equal(Arrays.equals((byte[]) client.get("large"), value), true);
        // The client compresses this value.
        String text = "all work and no play ".repeat(50_000);
        equal(client.set("text", 0, text).get(), true);
        equal(client.get("text"), text);
    }

    static void aValueAboveTheLimitIsRefused() throws Exception {
        byte[] value = new byte[2 << 20];
        new Random(2).nextBytes(value);
        boolean stored;
        try {
            stored = client.set("large", 0, value).get();
        } catch (ExecutionException refused) {
            stored = false;
        }
        equal(stored, false);
        equal(client.get("large"), null);
    }

    static void addReplaceAppendPrepend() throws Exception {
        equal(client.replace("k", 0, "1").get(), false);
        equal(client.append("k", "1").get(), false);
        equal(client.prepend("k", "1").get(), false);
        equal(client.add("k", 0, "b").get(), true);
        equal(client.add("k", 0, "x").get(), false);
        equal(client.append("k", "c").get(), true);
        equal(client.prepend("k", "a").get(), true);
        equal(client.get("k"), "abc");
        equal(client.replace("k", 0, "z").get(), true);
        equal(client.get("k"), "z");
    }

    static void counting() throws Exception {
        equal(client.incr("n", 1), -1L);
        client.set("n", 0, "10").get();
        equal(client.incr("n", 5), 15L);
        equal(client.decr("n", 1), 14L);
        equal(client.decr("n", 20), 0L);
        client.set("n", 0, "18446744073709551615").get();
        equal(client.incr("n", 2), 1L);
        // A missing counter is created with the default. In the text protocol the client uses add
        // for that.
        equal(client.incr("new", 1, 100, 1000), 100L);
        near(secondsLeft("new"), 1000);
        equal(client.incr("new", 1, 100, 1000), 101L);
    }

    static void compareAndSet() throws Exception {
        equal(client.gets("k"), null);
        equal(client.cas("k", 1, "v"), CASResponse.NOT_FOUND);
        client.set("k", 0, "one").get();
        CASValue<Object> found = client.gets("k");
        equal(found.getValue(), "one");
        equal(client.cas("k", found.getCas(), "two"), CASResponse.OK);
        equal(client.cas("k", found.getCas(), "three"), CASResponse.EXISTS);
        equal(client.get("k"), "two");
    }

    static void delete() throws Exception {
        equal(client.delete("k").get(), false);
        client.set("k", 0, "v").get();
        equal(client.delete("k").get(), true);
        equal(client.get("k"), null);
    }

    static void manyAtOnce() throws Exception {
        Map<String, Object> values = new HashMap<>();
        List<Future<Boolean>> stored = new ArrayList<>();
        for (int n = 0; n < 500; n++) {
            values.put("key:" + n, Integer.toString(n).repeat(n % 7));
            stored.add(client.set("key:" + n, 0, values.get("key:" + n)));
        }
        for (Future<Boolean> one : stored) {
            equal(one.get(), true);
        }
        List<String> keys = new ArrayList<>(values.keySet());
        keys.add("absent");
        equal(client.getBulk(keys), values);
        // The client combines waiting gets into one request.
        List<Future<Object>> found = new ArrayList<>();
        for (String key : keys) {
            found.add(client.asyncGet(key));
        }
        for (int n = 0; n < keys.size(); n++) {
            equal(found.get(n).get(), values.get(keys.get(n)));
        }
    }

    static void timeToLiveAndTouch() throws Exception {
        int now = (int) (System.currentTimeMillis() / 1000);
        // In the binary protocol, times are never negative.
        for (int gone : BINARY ? new int[] {now - 100} : new int[] {-1, now - 100}) {
            equal(client.set("k", gone, "v").get(), true);
            equal(client.get("k"), null);
        }
        equal(client.touch("k", 1000).get(), false);
        client.set("k", 0, "v").get();
        equal(secondsLeft("k"), -1);
        client.set("k", 1000, "v").get();
        near(secondsLeft("k"), 1000);
        client.set("k", now + 4_000_000, "v").get();
        near(secondsLeft("k"), 4_000_000);
        equal(client.touch("k", 500).get(), true);
        near(secondsLeft("k"), 500);
        if (BINARY) {
            // The client supports getAndTouch only in the binary protocol.
            equal(client.getAndTouch("k", 700).getValue(), "v");
            near(secondsLeft("k"), 700);
        }
        equal(client.get("k"), "v");
        equal(client.touch("k", now - 100).get(), true);
        equal(client.get("k"), null);
    }

    static void longKeysAndForeignLetters() throws Exception {
        for (String key : List.of("k".repeat(250), "schl\u00fcssel:\u65e5\u672c")) {
            equal(client.set(key, 0, "v").get(), true);
            equal(client.get(key), "v");
        }
    }

    static void versionStatisticsFlush() throws Exception {
        equal(client.getVersions().get(server).matches("\\d+\\.\\d+\\.\\d+"), true);
        equal(Long.parseLong(client.getStats().get(server).get("pid")) > 0, true);
        equal(client.getStats("settings").get(server).get("evictions"), "on");
        client.set("k", 0, "v").get();
        equal(client.flush().get(), true);
        equal(client.get("k"), null);
    }

    interface Check {
        void run() throws Exception;
    }

    /** Returns the time to live that the server has stored, or -1 without an expiry. */
    static int secondsLeft(String key) throws Exception {
        try (Socket connection = new Socket(server.getAddress(), server.getPort())) {
            connection.setSoTimeout(10_000);
            connection.getOutputStream().write(bytes("mg " + key + " t\r\n"));
            String reply = new BufferedReader(new InputStreamReader(connection.getInputStream())).readLine();
            equal(reply.startsWith("HD t"), true);
            return Integer.parseInt(reply.substring("HD t".length()));
        }
    }

    /** Allows a difference of less than 100 seconds, because clocks are rounded. */
    static void near(int got, int wanted) {
        equal(Math.abs(got - wanted) < 100 ? wanted : got, wanted);
    }

    static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("got " + got + ", not " + wanted);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
