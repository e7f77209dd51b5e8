//! A value of one key: how it is read from TOML and from a variable, and how it is written.
//!
//! A refusal says what is wrong with the value and what to write instead. It may repeat the value,
//! except where the value can hold a secret (URLs, passwords): those types never do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Value;

use crate::domain::QueueName;

/// Why a value was refused: the message completes "KEY: …", the remedy is an imperative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What is wrong.
    pub(super) message: String,
    /// What to do.
    pub(super) remedy: String,
}

impl Refusal {
    /// A refusal of two sentences.
    pub(super) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }

    /// The value has another type than the key.
    pub(super) fn wrong_type<T: Leaf>(found: &Value) -> Self {
        let message = match found {
            Value::Table(_) | Value::Array(_) => format!("is {}, not {}", article(found), T::KIND),
            Value::String(text) => format!("{text:?} is not {}", T::KIND),
            other => format!("{other} is not {}", T::KIND),
        };
        Self::new(message, format!("write it like {}", T::EXAMPLE))
    }
}

/// The TOML type of a value, with its article.
fn article(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// A type that a key can have.
pub(super) trait Leaf: Sized {
    /// What the reference calls it, with its article: `a duration`.
    const KIND: &'static str;
    /// A value as TOML writes it.
    const EXAMPLE: &'static str;

    /// Reads a value of the file.
    fn from_value(value: &Value) -> Result<Self, Refusal>;

    /// Reads the text of a variable; the default takes it for a TOML value.
    fn from_env(text: &str) -> Result<Self, Refusal> {
        let value = toml::de::ValueDeserializer::parse(text)
            .and_then(<Value as serde::Deserialize>::deserialize)
            .unwrap_or_else(|_| Value::String(text.to_owned()));
        Self::from_value(&value)
    }

    /// The value as TOML writes it; `None` for one that is not set.
    fn to_value(&self) -> Option<Value>;
}

impl Leaf for String {
    const KIND: &'static str = "a string";
    const EXAMPLE: &'static str = "\"text\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        value.as_str().map(str::to_owned).ok_or_else(|| Refusal::wrong_type::<Self>(value))
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Ok(text.to_owned())
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.clone()))
    }
}

impl Leaf for PathBuf {
    const KIND: &'static str = "a path";
    const EXAMPLE: &'static str = "\"/absolute/path\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        match value.as_str() {
            Some("") => Err(Refusal::new("is empty", format!("write it like {}", Self::EXAMPLE))),
            Some(text) => Ok(text.into()),
            None => Err(Refusal::wrong_type::<Self>(value)),
        }
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.to_string_lossy().into_owned()))
    }
}

impl Leaf for QueueName {
    const KIND: &'static str = "a queue name";
    const EXAMPLE: &'static str = "\"mail\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let text = value.as_str().ok_or_else(|| Refusal::wrong_type::<Self>(value))?;
        text.parse().map_err(|error| {
            let max = Self::MAX_BYTES;
            Refusal::new(
                format!("{text:?} is not a queue name: {error}"),
                format!("use at most {max} letters, digits and the characters . _ - :"),
            )
        })
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.as_str().to_owned()))
    }
}

impl Leaf for SocketAddr {
    const KIND: &'static str = "an address with a port";
    const EXAMPLE: &'static str = "\"127.0.0.1:9464\"";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let text = value.as_str().ok_or_else(|| Refusal::wrong_type::<Self>(value))?;
        text.parse().map_err(|_| {
            Refusal::new(
                format!("{text:?} is not {}", Self::KIND),
                format!("write numbers, not a name: {} or \"[::1]:9464\"", Self::EXAMPLE),
            )
        })
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        Self::from_value(&Value::String(text.to_owned()))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }
}

impl Leaf for bool {
    const KIND: &'static str = "true or false";
    const EXAMPLE: &'static str = "true";

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        value.as_bool().ok_or_else(|| Refusal::wrong_type::<Self>(value))
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::Boolean(*self))
    }
}

macro_rules! integer_leaf {
    ($($ty:ty),*) => {$(
        impl Leaf for $ty {
            const KIND: &'static str = "a whole number";
            const EXAMPLE: &'static str = "16";

            fn from_value(value: &Value) -> Result<Self, Refusal> {
                let number = value.as_integer().ok_or_else(|| Refusal::wrong_type::<Self>(value))?;
                Self::try_from(number).map_err(|_| {
                    let max = i64::try_from(Self::MAX).unwrap_or(i64::MAX);
                    Refusal::new(
                        format!("{number} is out of range"),
                        format!("write a whole number from 0 to {max}"),
                    )
                })
            }

            fn to_value(&self) -> Option<Value> {
                Some(Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX)))
            }
        }
    )*};
}

integer_leaf!(u32, usize);

impl Leaf for Vec<String> {
    const KIND: &'static str = "a list of strings";
    const EXAMPLE: &'static str = r#"["/usr/bin/env", "true"]"#;

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let refuse = || Refusal::wrong_type::<Self>(value);
        let items = value.as_array().ok_or_else(refuse)?;
        items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(refuse)).collect()
    }

    fn to_value(&self) -> Option<Value> {
        Some(Value::Array(self.iter().cloned().map(Value::String).collect()))
    }
}

impl Leaf for BTreeMap<String, String> {
    const KIND: &'static str = "a table of strings";
    const EXAMPLE: &'static str = r#"{ NAME = "value" }"#;

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        let refuse = || {
            let remedy = format!("write it like {}", Self::EXAMPLE);
            Refusal::new(format!("is not {}", Self::KIND), remedy)
        };
        let table = value.as_table().ok_or_else(refuse)?;
        let pair = |(name, value): (&String, &Value)| {
            Some((name.clone(), value.as_str().map(str::to_owned)?))
        };
        table.iter().map(|entry| pair(entry).ok_or_else(refuse)).collect()
    }

    fn to_value(&self) -> Option<Value> {
        let pairs = self.iter().map(|(name, text)| (name.clone(), Value::String(text.clone())));
        Some(Value::Table(pairs.collect()))
    }
}

/// A key that may be absent; an empty variable unsets it.
impl<T: Leaf> Leaf for Option<T> {
    const KIND: &'static str = T::KIND;
    const EXAMPLE: &'static str = T::EXAMPLE;

    fn from_value(value: &Value) -> Result<Self, Refusal> {
        T::from_value(value).map(Some)
    }

    fn from_env(text: &str) -> Result<Self, Refusal> {
        if text.is_empty() { Ok(None) } else { T::from_env(text).map(Some) }
    }

    fn to_value(&self) -> Option<Value> {
        self.as_ref().and_then(T::to_value)
    }
}
