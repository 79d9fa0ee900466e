//! Finds the bytes that matter in strings, many at once.

use wide::u8x16;

/// Bytes that are looked through at once.
pub(super) const BLOCK: usize = 64;

/// Where in a block something is: a bit for each byte, the first one lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// What ends a string or needs a look: quotes without a backslash before them, control
    /// characters, what a backslash stands before unless that is a quote or a backslash, and what
    /// lies behind the end.
    pub(super) stops: u64,
    pub(super) backslashes: u64,
    /// Whether its last byte is a backslash that escapes the first one of the next block.
    pub(super) escapes: bool,
}

impl Block {
    /// Looks at the block that begins at `at`; `escaped`: the one before it escapes its first byte.
    /// Out of line, or its many values would take the registers of what calls it.
    #[inline(never)]
    pub(super) fn read(bytes: &[u8], at: usize, escaped: bool) -> Self {
        match bytes.get(at..).and_then(<[u8]>::first_chunk) {
            Some(block) => Self::of(block, escaped),
            None => Self::last(bytes.get(at..).unwrap_or_default(), escaped),
        }
    }

    #[cold]
    fn last(rest: &[u8], escaped: bool) -> Self {
        let mut block = [0; BLOCK];
        block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        Self::of(&block, escaped)
    }

    fn of(block: &[u8; BLOCK], escaped: bool) -> Self {
        let [mut stops, mut quotes, mut backslashes] = [0, 0, 0];
        for (place, sixteen) in sixteens(block) {
            let quote = sixteen.simd_eq(QUOTES);
            quotes |= mask(quote) << place;
            stops |= mask(quote | is_control(sixteen)) << place;
            backslashes |= mask(sixteen.simd_eq(BACKSLASHES)) << place;
        }
        if backslashes == 0 && !escaped {
            return Self { stops, backslashes, escapes: false };
        }
        let escaped = escaped_by(backslashes, escaped);
        stops = stops & !(quotes & escaped) | escaped & !(quotes | backslashes);
        Self { stops, backslashes, escapes: (backslashes & !escaped) >> (BLOCK - 1) == 1 }
    }
}

const QUOTES: u8x16 = u8x16::splat(b'"');
const BACKSLASHES: u8x16 = u8x16::splat(b'\\');
const LAST_CONTROL: u8x16 = u8x16::splat(0x1f);

fn sixteens(block: &[u8; BLOCK]) -> impl Iterator<Item = (usize, u8x16)> {
    (0..).step_by(16).zip(block.as_chunks().0.iter().map(|sixteen| u8x16::new(*sixteen)))
}

fn is_control(sixteen: u8x16) -> u8x16 {
    sixteen.min(LAST_CONTROL).simd_eq(sixteen)
}

fn mask(sixteen: u8x16) -> u64 {
    u64::from(sixteen.to_bitmask())
}

/// What backslashes stand before, of which none is escaped itself; `first`: the first byte of the
/// block is.
fn escaped_by(backslashes: u64, first: bool) -> u64 {
    let mut escaped = u64::from(first);
    let mut escaping = backslashes & !escaped;
    // Nearly always no two stand in a row.
    if escaping & escaping << 1 == 0 {
        return escaped | escaping << 1;
    }
    while escaping != 0 {
        let one = escaping & escaping.wrapping_neg();
        escaped |= one << 1;
        escaping &= !(one | one << 1);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a backslash stands before what follows `bytes`, and none before that one.
    fn is_escaped(bytes: &[u8]) -> bool {
        bytes.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
    }

    /// The same, a byte at a time.
    fn slowly(bytes: &[u8], at: usize) -> Block {
        let escapes = bytes.get(..at + BLOCK).is_some_and(is_escaped);
        let mut block = Block { stops: 0, backslashes: 0, escapes };
        for bit in 0..BLOCK {
            let byte = bytes.get(at + bit).copied().unwrap_or_default();
            let after_backslash = is_escaped(&bytes[..bytes.len().min(at + bit)]);
            let stops = match byte {
                0..0x20 => true,
                b'"' => !after_backslash,
                b'\\' => false,
                _ => after_backslash,
            };
            block.stops |= u64::from(stops) << bit;
            block.backslashes |= u64::from(byte == b'\\') << bit;
        }
        block
    }

    fn agrees(bytes: &[u8]) {
        let mut escaped = false;
        for at in (0..bytes.len() + BLOCK).step_by(BLOCK) {
            let [fast, slow] = [Block::read(bytes, at, escaped), slowly(bytes, at)];
            escaped = fast.escapes;
            assert_eq!(fast, slow, "{at} of {:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn every_byte_is_told_apart_at_every_place() {
        for byte in 0..=255_u8 {
            for at in 0..2 * BLOCK {
                let mut bytes = [b'x'; 2 * BLOCK];
                bytes[at] = byte;
                agrees(&bytes);
                agrees(&bytes[..=at]);
            }
        }
    }

    #[test]
    fn backslashes_in_a_row_are_pairs_across_blocks_too() {
        for start in 50..70 {
            for length in 0..150 {
                for next in [b'"', b'n', b'\n'] {
                    let mut bytes = vec![b'x'; start];
                    bytes.extend(vec![b'\\'; length]);
                    bytes.push(next);
                    bytes.extend(*b"yz\\\"");
                    agrees(&bytes);
                }
            }
        }
    }

    #[test]
    fn a_quote_stops_only_without_a_backslash() {
        let Block { stops, backslashes, escapes } = Block::read(br#"a\"b\\"c\n"#, 0, false);
        assert!(!escapes);
        let behind = u64::MAX << 10;
        assert_eq!((stops, backslashes), (behind | 0b10_0100_0000, 0b1_0011_0010));
    }

    #[test]
    fn what_lies_behind_the_end_stops() {
        for length in 0..BLOCK {
            let text = vec![b'x'; BLOCK + length];
            assert_eq!(Block::read(&text, BLOCK, false).stops, u64::MAX << length, "{length}");
            assert_eq!(Block::read(&text, 2 * BLOCK, false).stops, u64::MAX);
        }
    }
}
