//! Goes through JSON text, and passes over what nobody asks for.

use super::{
    Unsure,
    blocks::{BLOCK, specials},
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
    /// Where the block of [`specials`] begins.
    block: usize,
    specials: u64,
}

impl<'a> Reader<'a> {
    /// At the beginning of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, block: 0, specials: specials(text.as_bytes(), 0) }
    }

    /// The next byte that is not white space; it is not consumed.
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at) {
                // Nearly always, so it comes first.
                Some(byte @ 0x21..) => return Some(*byte),
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
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
        // A copy stays in registers.
        let mut reader = *self;
        reader.expect(b'"')?;
        let start = reader.at;
        if reader.special()? != b'"' {
            return Err(Unsure);
        }
        let text = reader.since(start);
        reader.at += 1;
        *self = reader;
        text
    }

    /// Passes over any string.
    fn skip_string(&mut self) -> Result<(), Unsure> {
        self.expect(b'"')?;
        loop {
            match self.special()? {
                b'"' => break,
                b'\\' => self.skip_escape()?,
                _ => return Err(Unsure),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Goes to the next byte of a string that is a quote, a backslash or a control character.
    fn special(&mut self) -> Result<u8, Unsure> {
        loop {
            let block = self.at & !(BLOCK - 1);
            if block != self.block {
                (self.block, self.specials) = (block, specials(self.text.as_bytes(), block));
            }
            let found = self.specials >> (self.at - block);
            if found != 0 {
                self.at += found.trailing_zeros() as usize;
                return self.text.as_bytes().get(self.at).copied().ok_or(Unsure);
            }
            self.at = block + BLOCK;
        }
    }

    fn skip_escape(&mut self) -> Result<(), Unsure> {
        match self.text.as_bytes().get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') if is_code(self.text.as_bytes(), self.at + 2) => {
                self.at += 6;
                Ok(())
            }
            _ => Err(Unsure),
        }
    }

    /// Passes over a number, `true`, `false` or `null`.
    pub(super) fn skip_scalar(&mut self) -> Result<(), Unsure> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        for word in ["null", "true", "false"] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(());
            }
        }
        if rest.first() == Some(&b'-') {
            self.at += 1;
        }
        let start = self.at;
        let leading_zero = self.text.as_bytes().get(start) == Some(&b'0');
        self.skip_digits()?;
        if leading_zero && self.at - start > 1 {
            return Err(Unsure);
        }
        if self.text.as_bytes().get(self.at) == Some(&b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if matches!(self.text.as_bytes().get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.as_bytes().get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Ok(())
    }

    /// At least one.
    fn skip_digits(&mut self) -> Result<(), Unsure> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        match rest.iter().take_while(|it| it.is_ascii_digit()).count() {
            0 => Err(Unsure),
            digits => {
                self.at += digits;
                Ok(())
            }
        }
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
                Some(b'"') => self.skip_string()?,
                _ if key => return Err(Unsure),
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    let object = bracket == b'{';
                    if self.peek() == Some(if object { b'}' } else { b']' }) {
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
            if key {
                self.expect(b':')?;
                key = false;
                continue;
            }
            loop {
                if open == 1 {
                    return Ok(());
                }
                let object = open & 1 == 1;
                let next = self.peek();
                self.at += 1;
                match next {
                    Some(b',') => {
                        key = object;
                        break;
                    }
                    Some(b'}') if object => open >>= 1,
                    Some(b']') if !object => open >>= 1,
                    _ => return Err(Unsure),
                }
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

/// Whether four hexadecimal digits are there. Out of line, as it is rare.
#[inline(never)]
fn is_code(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 4).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
}
