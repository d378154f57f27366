//! Defines the servers that a change has passed on its way to this server. The entries of the log
//! store them as one number:
//!
//! ```text
//! origin = ID of the first server | ID of the master << 16
//! ```

use std::fmt::{self, Display, Formatter};

/// The servers that a change has passed, if it came from another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeOrigin {
    /// The ID of the server to which a client sent the change.
    pub server_id: u16,
    /// The ID of the server from which this one received the change. 0 if that is the first server,
    /// or if it is unknown.
    pub master_id: u16,
}

impl ChangeOrigin {
    /// Creates the origin of a change that a client sent to `server_id` and that this server
    /// received from `master_id`.
    pub fn new(server_id: u16, master_id: u16) -> ChangeOrigin {
        ChangeOrigin { server_id, master_id: if master_id == server_id { 0 } else { master_id } }
    }

    /// Returns true if the change has passed this server.
    pub fn has_passed(self, server_id: u16) -> bool {
        self.server_id == server_id || (self.master_id != 0 && self.master_id == server_id)
    }
}

impl From<u32> for ChangeOrigin {
    fn from(number: u32) -> ChangeOrigin {
        ChangeOrigin::new(number as u16, (number >> 16) as u16)
    }
}

impl From<ChangeOrigin> for u32 {
    fn from(origin: ChangeOrigin) -> u32 {
        u32::from(origin.server_id) | u32::from(origin.master_id) << 16
    }
}

impl Display for ChangeOrigin {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.master_id {
            0 => write!(f, "{}", self.server_id),
            master_id => write!(f, "{}:{master_id}", self.server_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ChangeOrigin;

    #[test]
    fn origin_of_one_server_is_its_number() {
        let near = ChangeOrigin::new(7, 7);
        assert_eq!((u32::from(near), ChangeOrigin::from(7), near.to_string()), (7, near, "7".into()));
        assert!(near.has_passed(7) && !near.has_passed(0));
        let far = ChangeOrigin::new(44, 300);
        assert_eq!((ChangeOrigin::from(u32::from(far)), far.to_string()), (far, "44:300".into()));
        assert!(far.has_passed(44) && far.has_passed(300) && !far.has_passed(7));
    }
}
