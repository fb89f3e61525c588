//! Binary files in a patch, in the form that `git apply` takes: both versions, so that it can also be taken back.

/// The name that git gives a file of these bytes.
pub(super) fn blob_name(bytes: &[u8]) -> String {
    let head = format!("blob {}\0", bytes.len());
    let digest = sha1(&[head.as_bytes(), bytes].concat());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines below the header of a file.
pub(super) fn literals(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut text = b"GIT binary patch\n".to_vec();
    for bytes in [new, old] {
        text.extend(format!("literal {}\n", bytes.len()).into_bytes());
        for part in stored(bytes).chunks(52) {
            let length = u8::try_from(part.len()).unwrap_or(52);
            text.push(match length {
                1..=26 => b'A' + length - 1,
                _ => b'a' + length - 27,
            });
            encode(part, &mut text);
            text.push(b'\n');
        }
        text.push(b'\n');
    }
    text
}

/// The bytes as a zlib stream that compresses nothing.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut parts = bytes.chunks(0xffff).peekable();
    if parts.peek().is_none() {
        stream.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(part) = parts.next() {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        stream.push(u8::from(parts.peek().is_none()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend_from_slice(part);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    stream.extend((high << 16 | low).to_be_bytes());
    stream
}

/// Four bytes as five characters.
fn encode(bytes: &[u8], to: &mut Vec<u8>) {
    const CHARACTERS: &[u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    for four in bytes.chunks(4) {
        let mut word = [0; 4];
        word[..four.len()].copy_from_slice(four);
        let mut value = u32::from_be_bytes(word);
        let mut five = [0; 5];
        for character in five.iter_mut().rev() {
            *character = CHARACTERS[value as usize % 85];
            value /= 85;
        }
        to.extend(five);
    }
}

/// By SHA-1 git names files; nothing is protected by it here.
fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut state: [u32; 5] = [
        0x6745_2301,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0,
    ];
    let mut message = bytes.to_vec();
    message.push(0x80);
    while message.len() % 64 != 56 {
        message.push(0);
    }
    message.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in message.chunks_exact(64) {
        let mut words = [0_u32; 80];
        for (word, four) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([four[0], four[1], four[2], four[3]]);
        }
        for at in 16..80 {
            let mixed = words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16];
            words[at] = mixed.rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (at, word) in words.iter().enumerate() {
            let (mixed, constant) = match at {
                0..20 => ((b & c) | (!b & d), 0x5a82_7999_u32),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6),
            };
            let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e);
            let next = next.wrapping_add(constant).wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (state, value) in state.iter_mut().zip([a, b, c, d, e]) {
            *state = state.wrapping_add(value);
        }
    }
    let mut digest = [0; 20];
    for (to, word) in digest.chunks_exact_mut(4).zip(state) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    digest
}
