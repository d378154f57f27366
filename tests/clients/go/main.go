// Tests gomemcache with a running server. TODANA_ADDRESS is its address.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var (
	address  = os.Getenv("TODANA_ADDRESS")
	client   = memcache.New(address)
	checking string
)

var checks = []struct {
	name string
	run  func()
}{
	{"any bytes come back", func() {
		everyByte := make([]byte, 256*16)
		for n := range everyByte {
			everyByte[n] = byte(n)
		}
		for _, value := range [][]byte{[]byte("value"), {}, everyByte, []byte("a\r\nEND\r\nVALUE x 0 1\r\n")} {
			equal(client.Set(&memcache.Item{Key: "key", Value: value, Flags: 4294967295}), nil)
			item, err := client.Get("key")
			equal(err, nil)
			equal(bytes.Equal(item.Value, value), true)
			equal(item.Flags, uint32(4294967295))
		}
		equal(get("absent"), "(none)")
	}},
	{"a million bytes come back", func() {
		value := make([]byte, 1_000_000)
		rand.New(rand.NewSource(1)).Read(value)
		equal(set("large", string(value), 0), nil)
		item, err := client.Get("large")
		equal(err, nil)
		equal(bytes.Equal(item.Value, value), true)
	}},
	{"a value above the limit is refused", func() {
		err := set("large", strings.Repeat("x", 2<<20), 0)
		equal(err != nil && strings.Contains(err.Error(), "object too large for cache"), true)
		equal(get("large"), "(none)")
	}},
	{"add, replace, append, prepend", func() {
		equal(client.Replace(item("k", "1")), memcache.ErrNotStored)
		equal(client.Append(item("k", "1")), memcache.ErrNotStored)
		equal(client.Prepend(item("k", "1")), memcache.ErrNotStored)
		equal(client.Add(item("k", "b")), nil)
		equal(client.Add(item("k", "x")), memcache.ErrNotStored)
		equal(client.Append(item("k", "c")), nil)
		equal(client.Prepend(item("k", "a")), nil)
		equal(get("k"), "abc")
		equal(client.Replace(item("k", "z")), nil)
		equal(get("k"), "z")
	}},
	{"counting", func() {
		_, err := client.Increment("n", 1)
		equal(err, memcache.ErrCacheMiss)
		set("n", "10", 0)
		equal(number(client.Increment("n", 5)), uint64(15))
		equal(number(client.Decrement("n", 20)), uint64(0))
		set("n", "18446744073709551615", 0)
		equal(number(client.Increment("n", 2)), uint64(1))
		set("word", "word", 0)
		_, err = client.Increment("word", 1)
		equal(err != nil && strings.Contains(err.Error(), "non-numeric"), true)
	}},
	{"compare and swap", func() {
		set("k", "one", 0)
		mine, err := client.Get("k")
		equal(err, nil)
		theirs, _ := client.Get("k")
		theirs.Value = []byte("two")
		equal(client.CompareAndSwap(theirs), nil)
		mine.Value = []byte("three")
		equal(client.CompareAndSwap(mine), memcache.ErrCASConflict)
		equal(get("k"), "two")
		client.Delete("k")
		equal(client.CompareAndSwap(mine), memcache.ErrCacheMiss)
		equal(get("k"), "(none)")
	}},
	{"delete", func() {
		equal(client.Delete("k"), memcache.ErrCacheMiss)
		set("k", "v", 0)
		equal(client.Delete("k"), nil)
		equal(get("k"), "(none)")
	}},
	{"many at once", func() {
		keys, values := []string{"absent"}, map[string]string{}
		for n := 0; n < 500; n++ {
			key := fmt.Sprintf("key:%d", n)
			values[key] = strings.Repeat(fmt.Sprint(n), n%7)
			equal(set(key, values[key], 0), nil)
			keys = append(keys, key)
		}
		items, err := client.GetMulti(keys)
		equal(err, nil)
		found := map[string]string{}
		for key, item := range items {
			found[key] = string(item.Value)
		}
		equal(found, values)
	}},
	{"time to live and touch", func() {
		now := int32(time.Now().Unix())
		for _, gone := range []int32{-1, now - 100} {
			equal(set("k", "v", gone), nil)
			equal(get("k"), "(none)")
		}
		equal(client.Touch("k", 1000), memcache.ErrCacheMiss)
		set("k", "v", 0)
		equal(secondsLeft("k"), -1)
		set("k", "v", 1000)
		near(secondsLeft("k"), 1000)
		set("k", "v", now+4_000_000)
		near(secondsLeft("k"), 4_000_000)
		equal(client.Touch("k", 500), nil)
		near(secondsLeft("k"), 500)
		touched, err := client.GetAndTouch("k", 700)
		equal(err, nil)
		equal(string(touched.Value), "v")
		near(secondsLeft("k"), 700)
		equal(client.Touch("k", -1), nil)
		equal(get("k"), "(none)")
	}},
	{"long keys and foreign letters", func() {
		for _, key := range []string{strings.Repeat("k", 250), "schlüssel:日本"} {
			equal(set(key, "v", 0), nil)
			equal(get(key), "v")
		}
	}},
	{"ping and flush", func() {
		equal(client.Ping(), nil)
		set("k", "v", 0)
		equal(client.FlushAll(), nil)
		equal(get("k"), "(none)")
	}},
}

func main() {
	client.Timeout = 10 * time.Second
	for _, check := range checks {
		checking = check.name
		equal(client.FlushAll(), nil)
		check.run()
	}
	fmt.Printf("%d of %d\n", len(checks), len(checks))
}

func item(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

func set(key, value string, expiry int32) error {
	return client.Set(&memcache.Item{Key: key, Value: []byte(value), Expiration: expiry})
}

func get(key string) string {
	item, err := client.Get(key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return "(none)"
	}
	equal(err, nil)
	return string(item.Value)
}

func number(value uint64, err error) uint64 {
	equal(err, nil)
	return value
}

// secondsLeft returns the time to live that the server has stored. -1 means that the record does
// not expire.
func secondsLeft(key string) int {
	connection, err := net.Dial("tcp", address)
	equal(err, nil)
	defer connection.Close()
	fmt.Fprintf(connection, "mg %s t\r\n", key)
	reply, err := bufio.NewReader(connection).ReadString('\n')
	equal(err, nil)
	var seconds int
	_, err = fmt.Sscanf(reply, "HD t%d", &seconds)
	equal(err, nil)
	return seconds
}

// near allows a difference of up to 100 seconds, because clocks are rounded.
func near(got, want int) {
	if got < want-100 || got > want+100 {
		equal(got, want)
	}
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("%s: got %v, not %v", checking, got, want))
	}
}
