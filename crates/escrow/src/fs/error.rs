//! The file system error: what was tried, on which path, and why it failed.

use rustix::io::Errno;

use super::as_owner;
use crate::model::text::Location;

/// Why an operation on a path failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The kernel said so.
    #[error("{}", std::io::Error::from(*.0))]
    Os(Errno),
    /// It is closed to this user, who cannot use it as its owner either, for this reason.
    #[error("{}; its owner could use it in a user namespace, but none can be made here ({})",
        std::io::Error::from(Errno::ACCESS), std::io::Error::from(*.0))]
    Closed(Errno),
    /// A symbolic link stands where none may be followed.
    #[error("a symbolic link is on the way, and links are never followed")]
    Link,
    /// Another file system or a bind mount begins there.
    #[error("a mount point is on the way; what is mounted there is not part of the resource")]
    Mount,
    /// It is another kind of thing than the operation needs.
    #[error("it is a {0}")]
    Kind(&'static str),
    /// It changed again and again while it was being read.
    #[error("it kept changing while it was being read")]
    Unsteady,
    /// The observer cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// It was there, and then it was not.
    #[error("it was moved or removed meanwhile; try again")]
    Vanished,
    /// What was read is not what was once written.
    #[error("{0}")]
    Damaged(&'static str),
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        match (errno == Errno::ACCESS).then(as_owner::forbidden).flatten() {
            Some(why) => Self::Closed(why),
            None => Self::Os(errno),
        }
    }
}

/// An operation on a path that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} '{path}'")]
pub struct FsError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// Where.
    pub path: Location,
    /// Why it failed.
    #[source]
    pub cause: Cause,
}

impl FsError {
    /// Whether the kernel gave this reason.
    pub fn is(&self, errno: Errno) -> bool {
        match self.cause {
            Cause::Os(cause) => cause == errno,
            Cause::Closed(_) => errno == Errno::ACCESS,
            _ => false,
        }
    }

    /// Whether there is nothing at the path.
    pub fn is_absent(&self) -> bool {
        self.is(Errno::NOENT) || self.is(Errno::NOTDIR)
    }

    /// Whether there was no room for it.
    pub fn wants_room(&self) -> bool {
        self.is(Errno::NOSPC) || self.is(Errno::DQUOT)
    }

    /// Whether the path would have led out of the resource.
    pub fn leaves(&self) -> bool {
        matches!(self.cause, Cause::Link | Cause::Mount)
    }
}
