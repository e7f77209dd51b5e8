//! tmp
use crate::domain::*;
/// t
pub fn decode(_: &Delivery, _: usize) -> Result<Task, Malformed> {
    unimplemented!()
}
