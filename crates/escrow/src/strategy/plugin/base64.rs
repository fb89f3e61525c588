//! Base64 (RFC 4648, with padding): how bytes travel in a message.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of these bytes.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => {
                    let value = group >> (18 - 6 * digit) & 63;
                    text.push(char::from(ALPHABET[value as usize]));
                }
                false => text.push('='),
            }
        }
    }
    text
}

/// The bytes of a text; `None` where it is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let plain = text.strip_suffix(b"==").or(text.strip_suffix(b"="));
    let plain = plain.unwrap_or(text);
    let mut bytes = Vec::with_capacity(plain.len() / 4 * 3 + 2);
    for chunk in plain.chunks(4) {
        let mut group = 0u32;
        for byte in chunk {
            let value = ALPHABET.iter().position(|known| known == byte)?;
            group = group << 6 | value as u32;
        }
        group <<= 6 * (4 - chunk.len());
        let [_, first, second, third] = group.to_be_bytes();
        bytes.extend(&[first, second, third][..chunk.len() - 1]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_there_and_back() {
        for length in 0..70usize {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 37 + 200) as u8).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
        assert_eq!(encode(b"escrow"), "ZXNjcm93");
        assert_eq!(encode(b"any"), "YW55");
        assert_eq!(encode(b"an"), "YW4=");
        assert_eq!(encode(b"a"), "YQ==");
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["a", "ab", "abc", "ab=c", "a===", "ab\n=", "äbc", "ab c"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
