//! The Python SDK, as it is shipped: put beside each program that is a class of Python, so that nothing has to be installed.

use std::io::Write;
use std::path::Path;

use crate::fs::{Dir, Result};

/// What Python has to search, in the directory of the program.
pub(super) const DIRECTORY: &str = "sdk";

/// What Python runs: serves a class, of which it is given the directory of the SDK, the name, and where to search. The SDK comes
/// first, and the working directory is not searched.
pub(super) const START: &str = "import sys
_, sdk, name, count, *places = sys.argv
sys.path[:] = [sdk, *places[:int(count)], *filter(None, sys.path), *places[int(count):]]
from escrow_plugin.server import main
main(name)
";

const PACKAGE: &[u8] = b"escrow_plugin";

/// The files of the package.
const FILES: &[(&str, &str)] = &[
    (
        "__init__.py",
        include_str!("../../../../../sdk/python/src/escrow_plugin/__init__.py"),
    ),
    (
        "errors.py",
        include_str!("../../../../../sdk/python/src/escrow_plugin/errors.py"),
    ),
    (
        "models.py",
        include_str!("../../../../../sdk/python/src/escrow_plugin/models.py"),
    ),
    (
        "server.py",
        include_str!("../../../../../sdk/python/src/escrow_plugin/server.py"),
    ),
    (
        "strategy.py",
        include_str!("../../../../../sdk/python/src/escrow_plugin/strategy.py"),
    ),
];

/// Puts the package into a directory.
pub(super) fn unpack(scratch: &Path) -> Result<()> {
    let scratch = Dir::open(scratch)?;
    scratch.make_dir(DIRECTORY.as_bytes(), 0o700)?;
    let sdk = scratch.subdir(DIRECTORY.as_bytes())?;
    sdk.make_dir(PACKAGE, 0o700)?;
    let package = sdk.subdir(PACKAGE)?;
    for (name, text) in FILES {
        // It is needed for as long as this process lives, so it need not be durable.
        let mut file = package.create(name.as_bytes(), 0o600)?;
        let written = file.write_all(text.as_bytes());
        written.map_err(|error| package.io_error("write", name.as_bytes(), &error))?;
    }
    Ok(())
}
