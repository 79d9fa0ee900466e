//! Goes through JSON text, and passes over what nobody asks for.

use super::{
    Unsure,
    blocks::{BLOCK, Block},
};

/// Objects and lists within each other that are read. `serde_json` has a limit of 128.
const MAX_DEPTH: u8 = 100;

/// A place in JSON text.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    text: &'a str,
    /// How many bytes are read.
    pub(super) at: usize,
    /// Brackets that are open around this place, as far as [`Reader::within`] opened them.
    pub(super) depth: u8,
    block: Block,
    /// Where it begins.
    block_at: usize,
}

impl<'a> Reader<'a> {
    /// At the beginning of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, block: Block::read(text.as_bytes(), 0, false), block_at: 0 }
    }

    /// The next byte that is not white space; it is not consumed.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        // Nearly always.
        if let Some(byte @ 0x21..) = bytes.get(self.at) {
            return Some(*byte);
        }
        self.at = space_end(bytes, self.at);
        bytes.get(self.at).copied()
    }

    /// Consumes `wanted`, white space before it included.
    pub(super) fn expect(&mut self, wanted: u8) -> Result<(), Unsure> {
        if self.peek() != Some(wanted) {
            return Err(Unsure);
        }
        self.at += 1;
        Ok(())
    }

    /// The text from a place to here.
    pub(super) fn since(&self, start: usize) -> Result<&'a str, Unsure> {
        self.text.get(start..self.at).ok_or(Unsure)
    }

    /// A string without escapes.
    pub(super) fn plain_string(&mut self) -> Result<&'a str, Unsure> {
        self.expect(b'"')?;
        let start = self.at;
        if self.stop(|block| block.stops | block.backslashes)? != b'"' {
            return Err(Unsure);
        }
        let text = self.since(start);
        self.at += 1;
        text
    }

    /// Passes over the rest of a string, its opening quote is behind.
    #[inline]
    fn skip_string(&mut self) -> Result<(), Unsure> {
        loop {
            let stop = self.stop(|block| block.stops)?;
            if stop == b'"' {
                self.at += 1;
                return Ok(());
            }
            self.at = escape_end(self.text.as_bytes(), self.at).ok_or(Unsure)?;
        }
    }

    /// Goes to the next byte of a string that needs a look.
    #[inline]
    fn stop(&mut self, stops: impl Fn(&Block) -> u64) -> Result<u8, Unsure> {
        loop {
            let block_at = self.at & !(BLOCK - 1);
            if block_at != self.block_at {
                // Where blocks were left out there was no string, so no backslash either.
                let escaped = self.block.escapes && block_at == self.block_at + BLOCK;
                self.block = Block::read(self.text.as_bytes(), block_at, escaped);
                self.block_at = block_at;
            }
            let found = stops(&self.block) >> (self.at - block_at);
            if found != 0 {
                self.at += found.trailing_zeros() as usize;
                return self.text.as_bytes().get(self.at).copied().ok_or(Unsure);
            }
            self.at = block_at + BLOCK;
        }
    }

    /// Passes over a number, `true`, `false` or `null`.
    pub(super) fn skip_scalar(&mut self) -> Result<(), Unsure> {
        self.at = scalar_end(self.text.as_bytes(), self.at).ok_or(Unsure)?;
        Ok(())
    }

    /// Passes over one value of any kind.
    pub(super) fn skip(&mut self) -> Result<(), Unsure> {
        // A copy stays in registers.
        let mut reader = *self;
        reader.skip_value()?;
        *self = reader;
        Ok(())
    }

    fn skip_value(&mut self) -> Result<(), Unsure> {
        // A bit for each open bracket, the innermost lowest, 1 for an object; above them a 1.
        let mut open = 1_u64;
        let mut key = false;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.skip_string()?;
                    if key {
                        self.expect(b':')?;
                        key = false;
                        continue;
                    }
                }
                _ if key => return Err(Unsure),
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    let object = bracket == b'{';
                    // A closing bracket comes two places after its opening one.
                    if self.peek() == Some(bracket + 2) {
                        self.at += 1;
                    } else if open.leading_zeros() == 0 {
                        return Err(Unsure);
                    } else {
                        open = open << 1 | u64::from(object);
                        key = object;
                        continue;
                    }
                }
                _ => self.skip_scalar()?,
            }
            while open != 1 {
                let object = open & 1 == 1;
                let next = self.peek();
                self.at += 1;
                if next == Some(b',') {
                    key = object;
                    break;
                }
                if next != Some(if object { b'}' } else { b']' }) {
                    return Err(Unsure);
                }
                open >>= 1;
            }
            if open == 1 {
                return Ok(());
            }
        }
    }

    /// Reads what is between brackets; the opening one is next.
    pub(super) fn within<T>(
        &mut self,
        closing: u8,
        read: impl FnOnce(&mut Self) -> Result<T, Unsure>,
    ) -> Result<T, Unsure> {
        if self.depth == MAX_DEPTH {
            return Err(Unsure);
        }
        self.at += 1;
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        self.expect(closing)?;
        Ok(value)
    }
}

// These are out of line and take no reader, so that the loop which passes over everything keeps its
// place in registers.

/// Where white space ends that begins at `at`.
#[inline(never)]
fn space_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Where an escape ends; at `at` is what stands behind its backslash, or what no string may hold.
#[inline(never)]
fn escape_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => {
            let code = bytes.get(at + 1..at + 5)?;
            code.iter().all(u8::is_ascii_hexdigit).then_some(at + 5)
        }
        _ => None,
    }
}

/// Where a number, `true`, `false` or `null` ends.
#[inline(never)]
fn scalar_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..).unwrap_or_default();
    for word in ["null", "true", "false"] {
        if rest.starts_with(word.as_bytes()) {
            return Some(at + word.len());
        }
    }
    let start = at + usize::from(rest.first() == Some(&b'-'));
    let mut end = digits_end(bytes, start)?;
    if bytes.get(start) == Some(&b'0') && end - start > 1 {
        return None;
    }
    if bytes.get(end) == Some(&b'.') {
        end = digits_end(bytes, end + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(end) {
        let signed = matches!(bytes.get(end + 1), Some(b'+' | b'-'));
        end = digits_end(bytes, end + 1 + usize::from(signed))?;
    }
    Some(end)
}

/// Where digits end, of which there is at least one.
fn digits_end(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = bytes.get(at..)?.iter().take_while(|it| it.is_ascii_digit()).count();
    (digits > 0).then_some(at + digits)
}
