//! Which lines of the scripts have instructions, and which of them were executed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lock_simulation::server::script::hash;
use mlua::Lua;

/// Reads a compiled function, as Lua 5.1 writes it.
struct Dump<'a>(&'a [u8]);

impl Dump<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn int(&mut self) -> usize {
        let bytes = self.take(4).try_into().unwrap_or_default();
        usize::try_from(u32::from_le_bytes(bytes)).unwrap_or_default()
    }

    fn text(&mut self) {
        let bytes = self.take(8).try_into().unwrap_or_default();
        let length = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or_default();
        self.take(length);
    }

    /// Adds the lines of a function, and of those in it.
    fn function(&mut self, lines: &mut BTreeSet<usize>) {
        const JUMP: u32 = 22;
        const RETURN: u32 = 30;
        /// `EQ`, `LT`, `LE`, `TEST`, `TESTSET` and `TFORLOOP`.
        const TESTS: [u32; 6] = [23, 24, 25, 26, 27, 33];
        self.text();
        self.take(4 + 4 + 4);
        let count = self.int();
        let code: Vec<u32> = (0..count)
            .map(|_| u32::try_from(self.int()).unwrap_or_default() & 63)
            .collect();
        for _ in 0..self.int() {
            match self.take(1)[0] {
                1 => drop(self.take(1).len()),
                3 => drop(self.take(8).len()),
                4 => self.text(),
                _ => {}
            }
        }
        for _ in 0..self.int() {
            self.function(lines);
        }
        let of_code: Vec<usize> = (0..self.int()).map(|_| self.int()).collect();
        for (at, line) in of_code.into_iter().enumerate() {
            // What Lua adds behind a `return` is never reached, and a jump behind a comparison or the head of a loop is
            // done by that.
            let is_unseen = match (at.checked_sub(1).map(|before| code[before]), code[at]) {
                (Some(RETURN), JUMP | RETURN) => true,
                (Some(before), JUMP) => TESTS.contains(&before),
                _ => false,
            };
            if !is_unseen {
                lines.insert(line);
            }
        }
        for _ in 0..self.int() {
            self.text();
            self.take(8);
        }
        for _ in 0..self.int() {
            self.text();
        }
    }
}

/// Adds the Lua files in a folder, and in those within it.
fn find(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "lua") {
            files.push(path);
        }
    }
    Ok(())
}

/// Prints the lines of the files in `folder` that no script has executed. Returns how many there are, and of how many.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn report(folder: &Path, scripts: &[&str], seen: &BTreeMap<String, BTreeSet<usize>>) -> io::Result<(usize, usize)> {
    let mut files = Vec::new();
    find(folder, &mut files)?;
    files.sort();
    let lua = Lua::new();
    let (mut never, mut all) = (0, 0);
    for path in files {
        let text = fs::read_to_string(&path)?;
        let (mut active, mut executed) = (BTreeSet::new(), BTreeSet::new());
        for script in scripts {
            let Some(at) = script.find(&text) else { continue };
            let first = script[..at].matches('\n').count();
            let count = text.lines().count();
            let within = |lines: &BTreeSet<usize>| -> BTreeSet<usize> {
                lines
                    .range(first + 1..=first + count)
                    .map(|line| line - first)
                    .collect()
            };
            let body = if script.starts_with("#!") {
                &script[script.find('\n').unwrap_or_default()..]
            } else {
                script
            };
            let function = lua.load(body).into_function().map_err(io::Error::other)?;
            let dumped = function.dump(false);
            let mut lines = BTreeSet::new();
            // Behind a header.
            Dump(&dumped[12..]).function(&mut lines);
            active.extend(within(&lines));
            if let Some(seen) = seen.get(&hash(script.as_bytes())) {
                executed.extend(within(seen));
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in active.difference(&executed) {
            never += 1;
            println!(
                "never executed: {name}:{line}: {}",
                text.lines().nth(line - 1).unwrap_or_default().trim()
            );
        }
        if active.is_empty() {
            return Err(io::Error::other(format!("{name} is part of no script")));
        }
        all += active.len();
    }
    Ok((never, all))
}
