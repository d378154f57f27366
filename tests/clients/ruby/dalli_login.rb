# Dalli with a login, against a running server with SASL, whose address is in TODANA_ADDRESS.

require 'dalli'
require 'logger'

Dalli.logger = Logger.new(File::NULL)
address, user, password = %w[ADDRESS USER PASSWORD].map { |name| ENV.fetch("TODANA_#{name}") }

known = Dalli::Client.new(address, username: user, password: password, socket_timeout: 10)
known.set('dalli', 'value')
abort 'the value is another one' unless known.get('dalli') == 'value'

begin
  stranger = Dalli::Client.new(address, username: user, password: "#{password}x", socket_timeout: 10)
  abort "a stranger was told #{stranger.get('dalli').inspect}"
rescue Dalli::DalliError
  puts '2 of 2'
end
