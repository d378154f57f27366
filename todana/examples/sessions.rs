//! Sessions that expire when they are unused for some time, and survive restarts.
//!
//! ```text
//! cargo run -p todana --example sessions
//! ```

use todana::{Db, DbOptions, Records, Result, Ttl, UpdateAction};

/// Each access restarts this time.
const IDLE: Ttl = Ttl::Sliding(15 * 60);

struct Sessions(Db);

impl Sessions {
    fn begin(&self, id: &str, user: &str) -> Result<bool> {
        // An ID in use is not assigned again, so no session of another user is taken over.
        let is_new = self.0.add(&key(id), format!("user={user}").as_bytes())?;
        if is_new {
            self.0.touch(&key(id), IDLE)?;
        }
        Ok(is_new)
    }

    fn user(&self, id: &str) -> Result<Option<String>> {
        let data = self.0.get(&key(id))?;
        Ok(data.map(|data| String::from_utf8_lossy(&data).trim_start_matches("user=").to_owned()))
    }

    fn add_to_cart(&self, id: &str, item: &str) -> Result<()> {
        self.0.update(&key(id), &mut |session| match session {
            Some(session) => UpdateAction::Value([session.value, b" item=", item.as_bytes()].concat()),
            None => UpdateAction::Keep,
        })
    }

    fn end(&self, id: &str) -> Result<bool> {
        self.0.remove(&key(id))
    }
}

fn key(id: &str) -> Vec<u8> {
    format!("session:{id}").into_bytes()
}

pub(crate) fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let options = DbOptions::default().data_dir(folder.path().join("sessions"));
    let sessions = Sessions(options.open("mem:hash")?);
    assert!(sessions.begin("4711", "ada")?);
    assert!(!sessions.begin("4711", "mallory")?);
    sessions.add_to_cart("4711", "teapot")?;
    drop(sessions);

    // The program restarts here.
    let sessions = Sessions(options.open("mem:hash")?);
    let record = sessions.0.get_record(&key("4711"))?.expect("it was kept");
    assert_eq!(record.value, b"user=ada item=teapot");
    assert_eq!(record.expiry.span_s(), Some(900));
    println!("{:?} has {}", sessions.user("4711")?, String::from_utf8_lossy(&record.value));
    assert!(sessions.end("4711")?);
    assert_eq!(sessions.user("4711")?, None);
    Ok(())
}
