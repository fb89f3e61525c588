//! Bytes as one readable, reversible line of ASCII: what names and contents look like in this crate's texts.

use std::fmt::Write;

/// Writes bytes as printable ASCII: `\n \t \r \\ \"` and `\xNN` for all that is not graphic, space included if asked.
pub fn escape(bytes: &[u8], space: bool) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            b'\\' => out.push_str("\\\\"),
            b'"' => out.push_str("\\\""),
            b' ' if !space => out.push(' '),
            0x21..=0x7e => out.push(char::from(byte)),
            _ => write!(out, "\\x{byte:02x}").expect("writing to a String cannot fail"),
        }
    }
    out
}

/// A path for a message: escaped, with `.` for the root of the tree.
pub fn show(path: &[u8]) -> String {
    if path.is_empty() {
        ".".to_owned()
    } else {
        escape(path, false)
    }
}

/// Reads back what [`escape`] wrote; bytes beyond ASCII stand for themselves.
///
/// # Panics
/// On an escape that is not one.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'0') => 0,
            Some(b'x') => {
                let mut digit = || {
                    rest.next()
                        .and_then(|d| char::from(d).to_digit(16))
                        .unwrap_or_else(|| panic!("\\x needs two hexadecimal digits in {text:?}"))
                };
                u8::try_from(digit() * 16 + digit()).expect("two hexadecimal digits fit a byte")
            }
            Some(other @ (b'\\' | b'"' | b' ')) => other,
            other => panic!("unknown escape {:?} in {text:?}", other.map(char::from)),
        });
    }
    out
}
