//! JSON text, read fast where nobody asks for it.
//!
//! Most of a review is managedFields and annotations that no rule reads, and passing over them is
//! most of the work. This reader passes over them several times faster than `serde_json`, and knows
//! only what is usual: at anything else it is [`Unsure`] and `serde_json` reads the text anew, with
//! its own judgement and error texts. So it may refuse whatever it likes, but accepts nothing that
//! `serde_json` refuses, and reads what it accepts alike.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor, value::BorrowedStrDeserializer},
    forward_to_deserialize_any,
};
use serde_json::value::RawValue;

/// Reads one JSON value.
///
/// # Errors
/// As `serde_json::from_str`.
pub(crate) fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    read(text).or_else(|Unsure| serde_json::from_str(text))
}

/// A JSON value as its text, borrowed from the input of [`from_str`], and as what it says.
#[derive(Clone, Debug)]
pub(crate) struct Both<'a, T> {
    pub(crate) text: &'a str,
    /// `None` when it was not read on the way; the text may still be good.
    pub(crate) value: Option<T>,
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Both<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(BOTH, BothVisitor(PhantomData))
    }
}

/// By this name [`Reader`] knows what is wanted; `serde_json` only has a type for the text.
const BOTH: &str = "metal3_guard::Both";

struct BothVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BothVisitor<T> {
    type Value = Both<'de, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut both: A) -> Result<Self::Value, A::Error> {
        let value = both.next_element()?;
        let text = both.next_element()?.unwrap_or_default();
        Ok(Both { text, value })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, other: D) -> Result<Self::Value, D::Error> {
        <&RawValue>::deserialize(other).map(|raw| Both { text: raw.get(), value: None })
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Unsure> {
    let mut reader =
        Reader { text, at: 0, depth: 0, block: 0, specials: specials(text.as_bytes(), 0) };
    let value = T::deserialize(&mut reader)?;
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(Unsure),
    }
}

/// Not usual, or not what the type wants.
#[derive(Debug)]
struct Unsure;

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unusual JSON")
    }
}

impl std::error::Error for Unsure {}

impl de::Error for Unsure {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Objects and lists within each other that are read. `serde_json` has a limit of 128.
const MAX_DEPTH: u8 = 100;

#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: u8,
    /// Where the block of [`specials`] begins.
    block: usize,
    specials: u64,
}

impl<'a> Reader<'a> {
    /// The next byte that is not white space; it is not consumed.
    fn peek(&mut self) -> Option<u8> {
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
    fn expect(&mut self, wanted: u8) -> Result<(), Unsure> {
        if self.peek() != Some(wanted) {
            return Err(Unsure);
        }
        self.at += 1;
        Ok(())
    }

    fn since(&self, start: usize) -> Result<&'a str, Unsure> {
        self.text.get(start..self.at).ok_or(Unsure)
    }

    /// A string without escapes.
    fn plain_string(&mut self) -> Result<&'a str, Unsure> {
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
    fn skip_scalar(&mut self) -> Result<(), Unsure> {
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
    fn skip(&mut self) -> Result<(), Unsure> {
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
    fn within<T>(
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

/// Bytes that are looked through at once.
const BLOCK: usize = 64;

/// Whether four hexadecimal digits are there. Out of line, as it is rare.
#[inline(never)]
fn is_code(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..at + 4).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
}

/// A bit for each byte of the block that begins at `block`, set for quotes, backslashes and control
/// characters, and for what lies behind the end. Out of line, or its many values would take the
/// registers of what calls it.
#[inline(never)]
fn specials(bytes: &[u8], block: usize) -> u64 {
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

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Unsure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsure> {
        match self.peek() {
            Some(b'"') => visitor.visit_borrowed_str(self.plain_string()?),
            Some(b'{') => {
                self.within(b'}', |reader| visitor.visit_map(Items { reader, started: false }))
            }
            Some(b'[') => {
                self.within(b']', |reader| visitor.visit_seq(Items { reader, started: false }))
            }
            _ => {
                let start = self.at;
                self.skip_scalar()?;
                match self.since(start)? {
                    "null" => visitor.visit_unit(),
                    "true" => visitor.visit_bool(true),
                    "false" => visitor.visit_bool(false),
                    // Minus zero is no integer.
                    "-0" => Err(Unsure),
                    number if number.starts_with('-') => {
                        visitor.visit_i64(number.parse().map_err(|_| Unsure)?)
                    }
                    number => visitor.visit_u64(number.parse().map_err(|_| Unsure)?),
                }
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsure> {
        if self.peek() == Some(b'n') {
            self.skip_scalar()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unsure> {
        if name != BOTH {
            return visitor.visit_newtype_struct(self);
        }
        self.peek();
        let start = self.at;
        visitor.visit_seq(ValueThenText { reader: self, start })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unsure> {
        self.skip()?;
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

/// The entries of an object or the elements of a list, up to the closing bracket.
struct Items<'r, 'a> {
    reader: &'r mut Reader<'a>,
    started: bool,
}

impl Items<'_, '_> {
    /// Whether another one comes; goes to where it begins.
    fn another(&mut self, closing: u8) -> Result<bool, Unsure> {
        if self.reader.peek() == Some(closing) {
            return Ok(false);
        }
        if self.started {
            self.reader.expect(b',')?;
        }
        self.started = true;
        Ok(true)
    }
}

impl<'de> MapAccess<'de> for Items<'_, 'de> {
    type Error = Unsure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Unsure> {
        if !self.another(b'}')? {
            return Ok(None);
        }
        let key = self.reader.plain_string()?;
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unsure> {
        self.reader.expect(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Unsure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unsure> {
        if !self.another(b']')? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

/// What [`BothVisitor`] gets: the value, if it can be read, and then its text.
struct ValueThenText<'r, 'a> {
    reader: &'r mut Reader<'a>,
    start: usize,
}

impl<'de> SeqAccess<'de> for ValueThenText<'_, 'de> {
    type Error = Unsure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unsure> {
        let Self { reader, start } = self;
        if reader.at > *start {
            return seed.deserialize(BorrowedStrDeserializer::new(reader.since(*start)?)).map(Some);
        }
        let depth = reader.depth;
        if let Ok(value) = seed.deserialize(&mut **reader) {
            return Ok(Some(value));
        }
        (reader.at, reader.depth) = (*start, depth);
        reader.skip()?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
