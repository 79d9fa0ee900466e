//! Hands out what a [`Reader`] reads, as serde asks for it.

use serde::{
    Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor, value::BorrowedStrDeserializer},
    forward_to_deserialize_any,
};

use super::{BOTH, Unsure, reader::Reader};

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
