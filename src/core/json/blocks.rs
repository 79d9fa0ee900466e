//! Finds the bytes that matter in a string, many at once.

/// Bytes that are looked through at once.
pub(super) const BLOCK: usize = 64;

/// A bit for each byte of the block that begins at `block`, set for quotes, backslashes and control
/// characters, and for what lies behind the end. Out of line, or its many values would take the
/// registers of what calls it.
#[inline(never)]
pub(super) fn specials(bytes: &[u8], block: usize) -> u64 {
    let bytes = bytes.get(block..).unwrap_or_default();
    if let Some(block) = bytes.first_chunk() {
        return specials_of(block);
    }
    let mut end = [0; BLOCK];
    end.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    specials_of(&end)
}

fn specials_of(block: &[u8; BLOCK]) -> u64 {
    // Without branches, so that the compiler looks at sixteen bytes at once.
    let mut flags = [0_u8; BLOCK];
    for (flag, byte) in flags.iter_mut().zip(block) {
        let [quote, backslash] = [b'"', b'\\'].map(|special| u8::from(*byte == special));
        *flag = quote | backslash | u8::from(*byte < 0x20);
    }
    // The product brings the eight flags together in its highest byte.
    let (eights, _) = flags.as_chunks();
    eights.iter().rev().fold(0, |bits, eight| {
        bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_apart_at_every_place() {
        for byte in 0..=255_u8 {
            let special = byte < 0x20 || byte == b'"' || byte == b'\\';
            for at in 0..BLOCK {
                let mut bytes = [b'x'; BLOCK];
                bytes[at] = byte;
                let expected = u64::from(special) << at;
                assert_eq!(specials(&bytes, 0), expected, "{byte} at {at}");
                // The same as the second of two blocks, and with more behind it.
                let more = [[b'"'; BLOCK], bytes, [0; BLOCK]].concat();
                assert_eq!(specials(&more, BLOCK), expected, "{byte} at {at}");
            }
        }
    }

    #[test]
    fn what_lies_behind_the_end_is_special() {
        for length in 0..BLOCK {
            let text = vec![b'x'; BLOCK + length];
            assert_eq!(specials(&text, BLOCK), u64::MAX << length, "{length}");
            assert_eq!(specials(&text, 2 * BLOCK), u64::MAX);
        }
    }
}
