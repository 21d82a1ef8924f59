//! The wire format: numbered fields of varints, fixed numbers and byte strings.

/// The bytes are cut or make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl<'a> WireValue<'a> {
    pub(super) fn bytes(&self) -> Result<&'a [u8], Damaged> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Damaged),
        }
    }

    pub(super) fn text(&self) -> Result<String, Damaged> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Damaged)
    }

    /// A signed number; negative ones are sent as 64-bit two's complement.
    pub(super) fn integer(&self) -> Result<i64, Damaged> {
        match self {
            Self::Varint(number) => Ok(number.cast_signed()),
            _ => Err(Damaged),
        }
    }

    pub(super) fn double(&self) -> Result<f64, Damaged> {
        match self {
            Self::Fixed64(bits) => Ok(f64::from_bits(*bits)),
            Self::Fixed32(bits) => Ok(f64::from(f32::from_bits(*bits))),
            _ => Err(Damaged),
        }
    }
}

/// Reads the fields of a message one by one.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and value; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, WireValue<'a>)>, Damaged> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Damaged)?;
        let value = match key & 7 {
            0 => WireValue::Varint(self.varint()?),
            1 => WireValue::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Damaged)?;
                WireValue::Bytes(self.take(length)?)
            }
            5 => WireValue::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(Damaged),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64, Damaged> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first().ok_or(Damaged)?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damaged)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        self.take(N)?.try_into().map_err(|_| Damaged)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Damaged)?;
        self.rest = rest;
        Ok(taken)
    }
}
