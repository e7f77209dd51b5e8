//! A table of the file, declared once: the names, docs, types and defaults of its keys.
//!
//! The macro makes the struct, the list of its fields for the reference, the reading and the
//! comparison, so that none of them can forget a key.

use toml::Value;

use super::leaf::Leaf;
use super::reader::Reader;

/// What the reference says about one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// Its name in the table.
    pub(super) name: &'static str,
    /// Its lines of documentation.
    pub(super) docs: &'static [&'static str],
    /// What kind of value it takes.
    pub(super) kind: &'static str,
    /// An example as TOML writes it, for keys without a default.
    pub(super) example: &'static str,
    /// Whether the key must be there.
    pub(super) required: bool,
    /// Its default, `None` if it has none.
    pub(super) default: fn() -> Option<Value>,
}

/// A table of the file.
pub(super) trait Section: Sized {
    /// The table's own lines of documentation.
    const DOCS: &'static [&'static str];
    /// Its keys, in the order of the reference.
    const FIELDS: &'static [Field];

    /// Reads the table; problems go to the reader, and `None` says that there was one.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// The names of the keys whose values differ.
    fn changed(&self, other: &Self) -> Vec<&'static str>;
}

/// Names one [`Leaf`]'s default for [`Field::default`].
pub(super) fn shown<T: Leaf>(value: &T) -> Option<Value> {
    value.to_value()
}

/// Declares a section: required keys first, then those with a default.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])*
        $name:ident {
            $( $(#[doc = $required_doc:literal])* $required:ident : $required_ty:ty, )*
            ..
            $( $(#[doc = $doc:literal])* $field:ident : $ty:ty = $default:expr, )*
        }
    ) => {
        $(#[doc = $section_doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $( $(#[doc = $required_doc])* pub $required: $required_ty, )*
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl $name {
            /// The required keys as given, everything else at its default.
            #[allow(clippy::new_without_default)]
            pub fn new($($required: $required_ty),*) -> Self {
                Self { $($required,)* $($field: $default,)* }
            }
        }

        impl $crate::config::section::Section for $name {
            const DOCS: &'static [&'static str] = &[$($section_doc),*];
            const FIELDS: &'static [$crate::config::section::Field] = &[
                $($crate::config::section::Field {
                    name: stringify!($required),
                    docs: &[$($required_doc),*],
                    kind: <$required_ty as $crate::config::leaf::Leaf>::KIND,
                    example: <$required_ty as $crate::config::leaf::Leaf>::EXAMPLE,
                    required: true,
                    default: || None,
                },)*
                $($crate::config::section::Field {
                    name: stringify!($field),
                    docs: &[$($doc),*],
                    kind: <$ty as $crate::config::leaf::Leaf>::KIND,
                    example: <$ty as $crate::config::leaf::Leaf>::EXAMPLE,
                    required: false,
                    default: || $crate::config::section::shown::<$ty>(&$default),
                },)*
            ];

            fn read(reader: &mut $crate::config::reader::Reader<'_>) -> Option<Self> {
                $( let $required = reader.required::<$required_ty>(stringify!($required)); )*
                $( let $field = reader.optional::<$ty>(stringify!($field), $default); )*
                Some(Self { $($required: $required?,)* $($field: $field?,)* })
            }

            fn changed(&self, other: &Self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $( if self.$required != other.$required { names.push(stringify!($required)); } )*
                $( if self.$field != other.$field { names.push(stringify!($field)); } )*
                names
            }
        }
    };
}

pub(super) use section;
