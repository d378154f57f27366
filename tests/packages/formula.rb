# Loads Homebrew's formula, and installs the archive by it: formula.rb FORMULA ARCHIVE
# Stands in for Homebrew, which is too large to install here.

require "digest"
require "tmpdir"
require "fileutils"
require "pathname"

class Pathname
  def install(*files)
    FileUtils.mkdir_p(self)
    files.flatten.each { |file| FileUtils.cp(file, self) }
  end
end

class Formula
  %w[desc homepage url version sha256 license depends_on].each do |name|
    define_singleton_method(name) do |*values|
      @fields ||= {}
      values.empty? ? @fields[name] : @fields[name] = values.first
    end
  end
  def self.service; end
  def self.test; end

  def initialize(prefix)
    @prefix = Pathname(prefix)
  end
  %w[bin man1 bash_completion zsh_completion fish_completion etc].each do |name|
    define_method(name) { @prefix/name }
  end
end

formula, archive = ARGV
load formula
archive_hash = Digest::SHA256.file(archive).hexdigest
raise "another hash" unless Todana.sha256 == archive_hash
raise "another name" unless File.basename(Todana.url) == File.basename(archive)

Dir.mktmpdir do |folder|
  system("tar", "-x", "-f", archive, "-C", folder, exception: true)
  prefix = "#{folder}/prefix"
  # Homebrew enters the only folder of an archive.
  Dir.chdir(Dir["#{folder}/*"].first) { Todana.new(prefix).install }
  raise "another version" unless `#{prefix}/bin/todana version` == "todana #{Todana.version}\n"
  %w[man1/todana-serve.1 bash_completion/todana zsh_completion/_todana
     fish_completion/todana.fish etc/todana/todana.toml].each do |file|
    raise "#{file}: missing" unless File.size?("#{prefix}/#{file}")
  end
end
