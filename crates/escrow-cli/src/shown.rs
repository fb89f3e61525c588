//! Documents and contents on a terminal: nothing in them moves the cursor, turns text around or cannot be seen. What goes to a file or a
//! pipe stays as it is.

use std::io::{Read, Write};

use escrow::model::text::{escape_document, harmless};

/// Contents as they are shown.
pub(crate) struct ShownContent<R> {
    from: R,
    /// Bytes of a character of which the rest has not come.
    begun: Vec<u8>,
    shown: std::io::Cursor<Vec<u8>>,
}

impl<R: Read> ShownContent<R> {
    pub(crate) fn new(from: R) -> Self {
        let (begun, shown) = (Vec::new(), std::io::Cursor::default());
        Self { from, begun, shown }
    }
}

impl<R: Read> Read for ShownContent<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.shown.read(buffer)? {
                0 if !buffer.is_empty() => {}
                length => return Ok(length),
            }
            let mut bytes = vec![0; 16 * 1024];
            let length = self.from.read(&mut bytes)?;
            bytes.truncate(length);
            let mut all = std::mem::take(&mut self.begun);
            all.extend(bytes);
            if all.is_empty() {
                return Ok(0);
            }
            if length > 0 {
                self.begun = all.split_off(all.len() - cut_off(&all));
            }
            self.shown = std::io::Cursor::new(harmless(&all).into_bytes());
        }
    }
}

/// How many bytes at the end are a character of which more would have to come.
fn cut_off(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let end = last.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(end) {
        Err(error) if error.error_len().is_none() => end.len(),
        _ => 0,
    }
}

/// Passes JSON on, the same document, escaped where it is for a terminal. Each piece that is written has whole characters.
pub(crate) struct ShownDocument<W> {
    to: W,
    terminal: bool,
}

impl<W> ShownDocument<W> {
    pub(crate) fn new(to: W, terminal: bool) -> Self {
        Self { to, terminal }
    }
}

impl<W: Write> Write for ShownDocument<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match std::str::from_utf8(bytes) {
            Ok(text) if self.terminal => self.to.write_all(escape_document(text).as_bytes())?,
            _ => self.to.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct OneByOne<'b>(&'b [u8]);

    impl Read for OneByOne<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = self.0.len().min(1);
            (&mut self.0).take(length as u64).read(buffer)
        }
    }

    #[test]
    fn characters_that_come_in_parts_are_shown_whole() {
        let text = "a\u{9b}31m\u{202e}\u{ad}é😀\n\tz".as_bytes();
        let bytes = [text, b"\xff\xf0\x9f"].concat();
        let mut shown = String::new();
        let mut reader = ShownContent::new(OneByOne(&bytes));
        reader.read_to_string(&mut shown).expect("it is text");
        let wanted = "a\\xc2\\x9b31m\\xe2\\x80\\xae\\xc2\\xadé😀\n\tz\\xff\\xf0\\x9f";
        assert_eq!(shown, wanted);
    }
}
