# Tests Dalli with a running server. TODANA_ADDRESS is its address.
#
# Dalli has the binary protocol before version 5, and the meta commands from version 4.
# TODANA_PROTOCOL selects the protocol: binary, or text for the meta commands.

require 'dalli'
require 'socket'

ADDRESS = ENV.fetch('TODANA_ADDRESS')
PROTOCOL = ENV['TODANA_PROTOCOL'] == 'text' ? :meta : :binary
Dalli.logger.level = Logger::ERROR
CLIENT = Dalli::Client.new(ADDRESS, protocol: PROTOCOL, socket_timeout: 10, value_max_bytes: 4 << 20)
# With this option, Dalli stores the bytes of a string without serialising it. Counters and append
# need that.
RAW = { raw: true }.freeze

CHECKS = {
  'any bytes come back' => lambda {
    every_byte = (0..255).to_a.pack('C*') * 16
    ['value', '', every_byte, "a\r\nEND\r\nVALUE x 0 1\r\n"].each do |value|
      equal true, stored?(CLIENT.set('key', value))
      equal value, CLIENT.get('key')
    end
    equal nil, CLIENT.get('absent')
  },
  'Ruby values come back' => lambda {
    [42, 2**80, 2.5, nil, true, :name, { a: [1, 'two'] }].each do |value|
      CLIENT.set('key', value)
      equal value, CLIENT.get('key')
    end
  },
  'a million bytes come back' => lambda {
    # The client compresses the second value.
    [Random.new(1).bytes(1_000_000), 'all work and no play ' * 50_000].each do |value|
      CLIENT.set('large', value)
      equal value, CLIENT.get('large')
    end
  },
  'a value above the limit is refused' => lambda {
    next if ENV['TODANA_ITEM_LIMIT'] == 'none'

    refused = begin
      CLIENT.set('large', Random.new(2).bytes(2 << 20))
    rescue Dalli::DalliError => e
      e.message
    end
    equal true, refused.to_s.match?(/too large/)
    equal nil, CLIENT.get('large')
  },
  'add, replace, append, prepend' => lambda {
    equal false, stored?(CLIENT.replace('k', '1', 0, RAW))
    equal false, stored?(CLIENT.append('k', '1'))
    equal false, stored?(CLIENT.prepend('k', '1'))
    equal true, stored?(CLIENT.add('k', 'b', 0, RAW))
    equal false, stored?(CLIENT.add('k', 'x', 0, RAW))
    equal true, stored?(CLIENT.append('k', 'c'))
    equal true, stored?(CLIENT.prepend('k', 'a'))
    equal 'abc', CLIENT.get('k')
    equal true, stored?(CLIENT.replace('k', 'z', 0, RAW))
    equal 'z', CLIENT.get('k')
  },
  'counting' => lambda {
    equal nil, CLIENT.incr('n')
    CLIENT.set('n', '10', 0, RAW)
    equal 15, CLIENT.incr('n', 5)
    equal 14, CLIENT.decr('n')
    equal 0, CLIENT.decr('n', 20)
    CLIENT.set('n', '18446744073709551615', 0, RAW)
    equal 1, CLIENT.incr('n', 2)
    equal 100, CLIENT.incr('new', 1, 1000, 100)
    near 1000, seconds_left('new')
    equal 101, CLIENT.incr('new', 1, 1000, 100)
    equal 100, CLIENT.decr('newer', 1, 1000, 100)
  },
  'compare and set' => lambda {
    equal nil, CLIENT.cas('k') { 'v' }
    written = CLIENT.set('k', 'one')
    value, version = CLIENT.get_cas('k')
    equal ['one', written], [value, version]
    equal true, stored?(version = CLIENT.set_cas('k', 'two', version))
    # A write returns the new version, which the next compare-and-set can use.
    equal true, stored?(CLIENT.replace_cas('k', 'three', version))
    equal false, stored?(CLIENT.set_cas('k', 'four', version))
    equal 'three', CLIENT.get('k')
    equal true, stored?(CLIENT.cas('k') { |old| "#{old}!" })
    lost = CLIENT.cas('k') do
      CLIENT.set('k', 'theirs')
      'mine'
    end
    equal false, stored?(lost)
    equal 'theirs', CLIENT.get('k')
    equal false, stored?(CLIENT.delete_cas('k', version))
    equal true, stored?(CLIENT.delete_cas('k', CLIENT.get_cas('k').last))
  },
  'delete' => lambda {
    equal false, stored?(CLIENT.delete('k'))
    CLIENT.set('k', 'v')
    equal true, stored?(CLIENT.delete('k'))
    equal nil, CLIENT.get('k')
  },
  'many at once' => lambda {
    values = (0...500).to_h { |n| ["key:#{n}", n.to_s * (n % 7)] }
    # In this block, Dalli sends quiet sets.
    CLIENT.multi { values.each { |key, value| CLIENT.set(key, value) } }
    equal values, CLIENT.get_multi(*values.keys, 'absent')
    versions = CLIENT.get_multi_cas(*values.keys).map { |_, (_, version)| version }
    # Each server counts its own versions.
    equal 500, ENV.key?('TODANA_SERVERS') ? versions.size : versions.uniq.size
    CLIENT.multi { values.each_key { |key| CLIENT.delete(key) } }
    equal({}, CLIENT.get_multi(*values.keys))
  },
  'time to live and touch' => lambda {
    # Expiries in the past are not tested: Dalli takes a past date for a very long time to live, and
    # does not accept negative times.
    equal nil, CLIENT.touch('k', 1000)
    CLIENT.set('k', 'v')
    equal(-1, seconds_left('k'))
    CLIENT.set('k', 'v', 1000)
    near 1000, seconds_left('k')
    CLIENT.set('k', 'v', Time.now.to_i + 4_000_000)
    near 4_000_000, seconds_left('k')
    equal true, CLIENT.touch('k', 500)
    near 500, seconds_left('k')
    equal 'v', CLIENT.gat('k', 700)
    near 700, seconds_left('k')
    equal nil, CLIENT.gat('absent', 700)
  },
  'long keys and foreign letters' => lambda {
    ['k' * 250, 'schlüssel:日本'].each do |key|
      CLIENT.set(key, 'v')
      equal 'v', CLIENT.get(key)
    end
  },
  'version, statistics, flush' => lambda {
    equal true, CLIENT.version[ADDRESS].match?(/\A\d+\.\d+\.\d+\z/)
    equal true, CLIENT.stats[ADDRESS]['pid'].to_i.positive?
    equal 'on', CLIENT.stats(:settings)[ADDRESS]['evictions']
    CLIENT.set('k', 'v')
    equal [true], CLIENT.flush
    equal nil, CLIENT.get('k')
  }
}.freeze

# Returns true if the record was stored. Dalli reports failure as false, as nil, or as 0, the
# version of a missing record.
def stored?(answer)
  ![false, nil, 0].include?(answer)
end

# Returns the time to live that the server has stored. -1 means that the record does not expire.
def seconds_left(key)
  host, port = ADDRESS.split(':')
  reply = Socket.tcp(host, port.to_i, connect_timeout: 10) do |connection|
    connection.write("mg #{key} t\r\n")
    connection.gets
  end
  Integer(reply[/\AHD t(-?\d+)\r\n\z/, 1])
end

# Allows a difference of less than 100 seconds, because clocks are rounded.
def near(wanted, got)
  equal wanted, (got - wanted).abs < 100 ? wanted : got
end

def equal(wanted, got)
  # Strings are compared as bytes, because strings from the server have no encoding.
  return if got.is_a?(String) && wanted.is_a?(String) ? got.b == wanted.b : got == wanted

  abort "#{@checking}: got #{got.inspect[0, 200]}, not #{wanted.inspect[0, 200]}, at #{caller_locations(1, 1).first}"
end

CHECKS.each do |name, check|
  @checking = name
  equal [true], CLIENT.flush
  check.call
end
puts "#{CHECKS.size} of #{CHECKS.size}"
