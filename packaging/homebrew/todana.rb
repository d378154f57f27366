class Todana < Formula
  desc "Key-value server for memcached's clients"
  homepage "@URL@"
  url "@URL@"
  version "@VERSION@"
  sha256 "@SHA256@"
  license any_of: ["Apache-2.0", "MIT"]
  depends_on :linux

  def install
    bin.install "todana"
    man1.install Dir["man/*.1"]
    bash_completion.install "bash/todana"
    zsh_completion.install "_todana"
    fish_completion.install "todana.fish"
    (etc/"todana").install "todana.toml"
  end

  service do
    run [opt_bin/"todana", "serve", "--data-dir", var/"lib/todana"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/todana version")
  end
end
