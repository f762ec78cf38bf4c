//! Random numbers for the standard library's maps, from the seed of the thread.

use std::cell::RefCell;

thread_local! {
    static SEEDED: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// Seeds what this thread draws from the operating system.
pub fn seed(seed: u64) {
    SEEDED.set(Some(fastrand::Rng::with_seed(seed)));
}

/// Stands in for the C library's function of this name, in this program only.
///
/// # Safety
/// `buffer` has room for `length` bytes.
// SAFETY: no other function of this name is linked into the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller owns that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    // A thread without a seed, such as the main one, decides nothing.
    SEEDED.with_borrow_mut(|rng| rng.get_or_insert_with(|| fastrand::Rng::with_seed(0)).fill(bytes));
    isize::try_from(length).unwrap_or(isize::MAX)
}
