//! The slots of a cluster, by which keys are spread over its nodes.

use std::sync::LazyLock;

/// The number of slots.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

/// Returns the slot of a key: that of its tag, if it has one.
pub(in crate::store::redis) fn slot_of(key: &str) -> u16 {
    crc16(tag_of(key).unwrap_or(key)) % SLOTS
}

/// Returns the part of a key that alone decides about its slot: what is between its first `{` and
/// the next `}`, unless that is nothing.
pub(in crate::store::redis) fn tag_of(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// Returns a tag whose slot is this one.
pub(in crate::store::redis) fn tag_in(slot: u16) -> u32 {
    TAGS.get(usize::from(slot)).copied().unwrap_or_default()
}

/// For each slot the smallest number that lies in it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut left = tags.len();
    for number in 0_u32.. {
        let slot = crc16(&number.to_string()) % SLOTS;
        if let Some(tag @ None) = tags.get_mut(usize::from(slot)) {
            *tag = Some(number);
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    tags.into_iter().flatten().collect()
});

/// The CRC with the polynomial 0x1021 that XMODEM uses, as the Redis Cluster specification asks for.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |crc: u16, byte| {
        let [high, low] = crc.to_be_bytes();
        let of_byte = OF_BYTES.get(usize::from(high ^ byte)).copied().unwrap_or_default();
        u16::from(low) << 8 ^ of_byte
    })
}

/// The CRC of each byte.
const OF_BYTES: [u16; 256] = {
    let mut of_bytes = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        of_bytes[byte as usize] = crc;
        byte += 1;
    }
    of_bytes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_where_servers_look_for_them() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}bar", 12_182),
            ("a{foo}{bar}", 12_182),
            ("b", 3300),
            ("", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("x{}y"), crc16("x{}y") % SLOTS, "an empty tag is none");
        assert_eq!(slot_of("a{b"), crc16("a{b") % SLOTS);
        assert_eq!(slot_of("a}b{c}"), slot_of("c"));
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(&format!("a{{{}}}", tag_in(slot))), slot);
        }
    }
}
