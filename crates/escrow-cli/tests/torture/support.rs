//! What the files that are shared with the tests of the engine take from their support.

pub(crate) use escrow_testkit::files::sh;

pub(crate) use crate::subject::options;
