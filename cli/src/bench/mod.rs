//! `todana bench`.
pub(crate) const AFTER_HELP: &str = "";
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}
pub(crate) fn run(_: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}
