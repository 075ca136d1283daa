//! The one encoding of the ledger: MessagePack with named fields.
//!
//! Its rules of evolution are serde's: a new field has a default and old nodes pass over it; an unknown
//! command is an error, never skipped. Golden bytes of what is on disk are in `tests/data/golden`.

use serde::{Serialize, de::DeserializeOwned};

/// What could not be encoded or decoded. On disk it means a newer format or a damaged row.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The value has no encoding.
    #[error("encode {what}: {source}")]
    Encode {
        /// The type.
        what: &'static str,
        /// Why.
        source: rmp_serde::encode::Error,
    },
    /// The bytes are no such value.
    #[error("decode {what} from {bytes} bytes: {source}; they were written by a newer version or are damaged")]
    Decode {
        /// The type.
        what: &'static str,
        /// How many bytes there were.
        bytes: usize,
        /// Why.
        source: rmp_serde::decode::Error,
    },
}

/// Encodes a value.
///
/// # Errors
/// Only for types that MessagePack cannot hold.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    rmp_serde::to_vec_named(value).map_err(|source| CodecError::Encode { what: std::any::type_name::<T>(), source })
}

/// Decodes a value.
///
/// # Errors
/// Bytes that are no such value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    rmp_serde::from_slice(bytes).map_err(|source| CodecError::Decode {
        what: std::any::type_name::<T>(),
        bytes: bytes.len(),
        source,
    })
}
