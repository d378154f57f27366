# Tests Dalli's login with a running server that requires SASL. TODANA_ADDRESS is its address.

require 'dalli'
require 'logger'

Dalli.logger = Logger.new(File::NULL)
address, user, password = %w[ADDRESS USER PASSWORD].map { |name| ENV.fetch("TODANA_#{name}") }

known = Dalli::Client.new(address, username: user, password: password, socket_timeout: 10)
known.set('dalli', 'value')
abort 'get returned a different value than the stored one' unless known.get('dalli') == 'value'

begin
  stranger = Dalli::Client.new(address, username: user, password: "#{password}x", socket_timeout: 10)
  abort "the wrong password is accepted: #{stranger.get('dalli').inspect}"
rescue Dalli::DalliError
  puts '2 of 2'
end
