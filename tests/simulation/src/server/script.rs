//! Scripts, run by the Lua that the servers have.

mod first_line;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, Variadic, VmState};

pub use first_line::Traits;
use first_line::declared;
use values::{Word, to_lua, to_reply};

use super::engine::{Asked, Caller, Engine};
use super::resp::{Answer, Reply};
use super::version::Version;

/// Runs a script, and returns what went wrong with the place where it did. An error that `redis.call` raises is known
/// to the server, which says what it was.
const RUN: &str = "
    local place, raised = ...
    local type, xpcall = type, xpcall
    return function(script)
      return xpcall(script, function(err)
        local source, line = place()
        if type(err) == 'userdata' then
          err = raised(err)
        end
        return {err = err, source = source, line = line}
      end)
    end
";

/// The bytes that Lua may have used in vain before it looks for them: few enough for a processor's cache.
const GARBAGE: usize = 1 << 19;

/// Forbids globals. The lines are those that Redis 6.2 names.
const STRICT: &str = "local say = ...
setmetatable(_G, {



  __newindex = function(_, name)
    -- line 8
    error(say(name, true), 2)






  end, __index = function(_, name) error(say(name, false), 2)
  end,
})
";

struct Script {
    function: Function,
    /// `None` without such a line.
    traits: Option<Traits>,
}

/// The scripts that a server knows, by their hashes. Clones know scripts of their own, but share what is compiled.
#[derive(Clone)]
pub struct Scripts {
    shared: Arc<Shared>,
    known: BTreeSet<String>,
}

/// Where the engine is while a script runs, with the one who asked for it.
type Place = Mutex<Option<(Engine, Caller)>>;

struct Shared {
    lua: Lua,
    globals: Table,
    run: Function,
    place: Arc<Place>,
    /// The bytes that Lua used after it looked last for those that it needs no more.
    in_use: AtomicUsize,
    version: Version,
    compiled: Mutex<BTreeMap<String, Arc<Script>>>,
    lines: Option<Arc<Lines>>,
}

/// The lines that were executed, by script.
#[derive(Default)]
pub struct Lines {
    current: Mutex<String>,
    seen: Mutex<BTreeMap<String, BTreeSet<usize>>>,
}

impl Lines {
    /// Returns the executed lines of each script, by its hash.
    pub fn seen(&self) -> BTreeMap<String, BTreeSet<usize>> {
        locked(&self.seen).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the hash by which a script is called.
pub fn hash(source: &[u8]) -> String {
    sha1_smol::Sha1::from(source).digest().to_string()
}

pub fn unknown(version: Version) -> Reply {
    let advice = if version == Version::Valkey9 {
        ""
    } else {
        " Please use EVAL."
    };
    Reply::error(format!("NOSCRIPT No matching script.{advice}"))
}

impl Scripts {
    /// Makes a Lua of this version's servers. With `lines` it notes which lines are executed.
    ///
    /// # Errors
    /// Fails if Lua has no memory.
    pub fn new(version: Version, lines: Option<Arc<Lines>>) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::default())?;
        let globals = lua.globals();
        for name in ["dofile", "loadfile", "collectgarbage", "require"] {
            globals.raw_set(name, Value::Nil)?;
        }
        if version.is_7() {
            globals.raw_set("print", Value::Nil)?;
        }
        let place: Arc<Place> = Arc::default();
        let redis = library(&lua, version)?;
        talk(&lua, &redis, &place, version)?;
        globals.raw_set("redis", redis)?;
        let innermost = lua.create_function(|lua, ()| Ok(innermost(lua)))?;
        let raised = lua.create_function(move |lua, error: Value| {
            // 6.2 has a text in such a case, and later ones a table.
            let text = match &error {
                Value::Error(error) => raised_text(error),
                other => other.to_string().unwrap_or_default(),
            };
            if version.is_7() {
                failure(lua, &text)
            } else {
                Ok(Value::String(lua.create_string(text)?))
            }
        })?;
        let run = lua.load(RUN).set_name("=run").call((innermost, raised))?;
        let say = lua.create_function(move |lua, (name, is_new): (Value, bool)| {
            let name = name.to_string().unwrap_or_default();
            lua.create_string(match (is_new, version.is_7()) {
                (true, true) => "Attempt to modify a readonly table".to_owned(),
                (true, false) => format!("Script attempted to create global variable '{name}'"),
                (false, _) => format!("Script attempted to access nonexistent global variable '{name}'"),
            })
        })?;
        let name = if version.is_7() {
            "=strict"
        } else {
            "@enable_strict_lua"
        };
        lua.load(STRICT).set_name(name).call::<()>(say)?;
        // Little is alive between two scripts: all at once is cheaper than in small steps.
        lua.gc_stop();
        if let Some(lines) = lines.clone() {
            lua.set_hook(HookTriggers::EVERY_LINE, move |_, debug| {
                if debug.source().source.as_deref() == Some("@user_script") {
                    let current = locked(&lines.current).clone();
                    locked(&lines.seen)
                        .entry(current)
                        .or_default()
                        .extend(debug.current_line());
                }
                Ok(VmState::Continue)
            })?;
        }
        Ok(Self {
            shared: Arc::new(Shared {
                globals: lua.globals(),
                lua,
                run,
                place,
                in_use: AtomicUsize::new(0),
                version,
                compiled: Mutex::default(),
                lines,
            }),
            known: BTreeSet::new(),
        })
    }

    /// Returns the same Lua, knowing no script.
    pub(super) fn without(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            known: BTreeSet::new(),
        }
    }

    /// Forgets all scripts.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    pub fn knows(&self, hash: &str) -> bool {
        self.known.contains(&hash.to_lowercase())
    }

    /// Compiles a script, and returns its hash.
    pub fn load(&mut self, source: &[u8], version: Version) -> Result<String, Reply> {
        let hash = hash(source);
        if !self.known.contains(&hash) {
            let mut compiled = locked(&self.shared.compiled);
            if !compiled.contains_key(&hash) {
                let script = self.compile(source, version)?;
                compiled.insert(hash.clone(), Arc::new(script));
            }
            drop(compiled);
            self.known.insert(hash.clone());
        }
        Ok(hash)
    }

    fn compile(&self, source: &[u8], version: Version) -> Result<Script, Reply> {
        debug_assert_eq!(version, self.shared.version);
        let (traits, body) = if version.is_7() {
            let declared = declared(source, version)?;
            if declared.language != "lua" {
                return Err(Reply::error(format!(
                    "ERR Could not find scripting engine '{}'",
                    declared.language
                )));
            }
            (declared.traits, declared.body)
        } else {
            (None, source)
        };
        let lua = &self.shared.lua;
        let compiled = if version.is_7() {
            let chunk = lua.load(body).set_name("@user_script").set_mode(ChunkMode::Text);
            chunk.into_function()
        } else {
            // Its text becomes the body of a function, which shows in the messages of the compiler.
            let text = [b"return function() ".as_slice(), body, b"\nend"].concat();
            let chunk = lua.load(text).set_name("@user_script").set_mode(ChunkMode::Text);
            chunk.into_function().and_then(|outer| outer.call(()))
        };
        let function = compiled.map_err(|error| {
            let text = match &error {
                mlua::Error::SyntaxError { message, .. } => message.clone(),
                error => error.to_string(),
            };
            Reply::error(format!("ERR Error compiling script (new function): {text}"))
        })?;
        Ok(Script { function, traits })
    }

    /// Returns what the script that these words run declares.
    pub fn traits(&self, words: &[&[u8]], version: Version) -> Option<Traits> {
        if !version.is_7() {
            return None;
        }
        if words[0].eq_ignore_ascii_case(b"EVAL") {
            return declared(words[1], version).ok()?.traits;
        }
        let hash = String::from_utf8_lossy(words[1]).to_lowercase();
        let script = self
            .known
            .get(&hash)
            .and_then(|hash| locked(&self.shared.compiled).get(hash).cloned());
        script?.traits
    }
}

/// Returns the innermost place in a script.
fn innermost(lua: &Lua) -> (Option<String>, Option<usize>) {
    // Below are this function, the handler of errors, and those that called it.
    for level in 2..12 {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            (
                source.what.to_string(),
                source.source.map(|source| source.into_owned()),
                debug.current_line(),
            )
        });
        match found {
            None => break,
            Some((what, Some(source), line)) if what != "C" && source.starts_with('@') => return (Some(source), line),
            Some(_) => {}
        }
    }
    (None, None)
}

/// The text of an error that `redis.call` has raised.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raised_text(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => raised_text(cause),
        error => error
            .downcast_ref::<Raised>()
            .map_or_else(|| format!("ERR {error}"), |raised| raised.0.clone()),
    }
}

fn failure(lua: &Lua, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set("err", text)?;
    Ok(Value::Table(table))
}

/// Adds to the table `redis` what talks to the server.
fn talk(lua: &Lua, redis: &Table, place: &Arc<Place>, version: Version) -> mlua::Result<()> {
    let of_call = Arc::clone(place);
    let call = lua.create_function(
        move |lua, words: Variadic<Value>| match ask(lua, &of_call, &words, version)? {
            Reply::Error(text) => Err(mlua::Error::external(Raised(text))),
            reply => to_lua(lua, &reply, version),
        },
    )?;
    let of_pcall = Arc::clone(place);
    let pcall = lua.create_function(move |lua, words: Variadic<Value>| {
        to_lua(lua, &ask(lua, &of_pcall, &words, version)?, version)
    })?;
    let of_set_repl = Arc::clone(place);
    let set_repl = lua.create_function(move |_, kinds: i64| {
        if let Some((engine, _)) = locked(&of_set_repl).as_mut() {
            engine.replicate(kinds & 2 != 0);
        }
        Ok(())
    })?;
    redis.raw_set("call", call)?;
    redis.raw_set("pcall", pcall)?;
    redis.raw_set("set_repl", set_repl)
}

/// Returns the table `redis`, without what talks to the server.
fn library(lua: &Lua, version: Version) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    for (name, value) in [
        ("REPL_NONE", 0),
        ("REPL_AOF", 1),
        ("REPL_SLAVE", 2),
        ("REPL_REPLICA", 2),
        ("REPL_ALL", 3),
    ] {
        redis.raw_set(name, value)?;
    }
    for (value, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"]
        .into_iter()
        .enumerate()
    {
        redis.raw_set(name, value)?;
    }
    redis.raw_set("log", lua.create_function(|_, _: Variadic<Value>| Ok(()))?)?;
    redis.raw_set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    redis.raw_set(
        "sha1hex",
        lua.create_function(|_, text: mlua::LuaString| Ok(hash(&text.as_bytes())))?,
    )?;
    let status = lua.create_function(|lua, text: String| {
        let table = lua.create_table()?;
        table.raw_set("ok", text)?;
        Ok(table)
    })?;
    redis.raw_set("status_reply", status)?;
    let error = lua.create_function(move |lua, text: String| {
        let text = text.strip_prefix('-').unwrap_or(&text);
        // From 7.0, an error has a code.
        let has_code = !version.is_7() || text.contains(' ');
        failure(
            lua,
            &if has_code {
                text.to_owned()
            } else {
                format!("ERR {text}")
            },
        )
    })?;
    redis.raw_set("error_reply", error)?;
    Ok(redis)
}

/// Runs a script that the server knows.
pub fn run(engine: &mut Engine, caller: &Caller, hash: &str, keys: &[&[u8]], arguments: &[&[u8]]) -> Answer {
    let version = engine.version;
    let shared = Arc::clone(&engine.scripts.shared);
    if !engine.scripts.knows(hash) {
        return Err(unknown(version));
    }
    let Some(script) = locked(&shared.compiled).get(hash).cloned() else {
        return Err(unknown(version));
    };
    engine.begin_script(keys, script.traits)?;
    if let Some(lines) = &shared.lines {
        hash.clone_into(&mut locked(&lines.current));
    }
    // The functions that scripts call find the engine in its place.
    let hollow = Engine::hollow(engine);
    *locked(&shared.place) = Some((std::mem::replace(engine, hollow), *caller));
    let answer = shared.execute(&script, keys, arguments);
    if let Some((back, _)) = locked(&shared.place).take() {
        *engine = back;
    }
    engine.end_script();
    match answer {
        Ok(Ended::With(value)) => Ok(to_reply(&value)),
        Ok(Ended::Failed(error)) => Err(Reply::error(told(&error, hash, version))),
        Err(error) => Err(Reply::error(format!("ERR {error}"))),
    }
}

enum Ended {
    With(Value),
    /// The error, and where it was raised.
    Failed(Table),
}

impl Shared {
    fn execute(&self, script: &Script, keys: &[&[u8]], arguments: &[&[u8]]) -> mlua::Result<Ended> {
        if self.lua.used_memory() > self.in_use.load(Ordering::Relaxed) + GARBAGE {
            self.lua.gc_collect()?;
            // A collection starts the small steps again.
            self.lua.gc_stop();
            self.in_use.store(self.lua.used_memory(), Ordering::Relaxed);
        }
        let texts = |texts: &[&[u8]]| -> mlua::Result<Table> {
            let table = self.lua.create_table_with_capacity(texts.len(), 0)?;
            for text in texts {
                table.raw_push(self.lua.create_string(text)?)?;
            }
            Ok(table)
        };
        self.globals.raw_set("KEYS", texts(keys)?)?;
        self.globals.raw_set("ARGV", texts(arguments)?)?;
        let (done, value): (bool, Value) = self.run.call(&script.function)?;
        Ok(match value {
            Value::Table(error) if !done => Ended::Failed(error),
            value => Ended::With(value),
        })
    }
}

/// Carries out a command of the script that runs.
fn ask(lua: &Lua, place: &Place, words: &[Value], version: Version) -> mlua::Result<Reply> {
    let refused = |text: String| {
        if version.is_7() {
            return Reply::Error(text);
        }
        let line = lua.inspect_stack(1, |debug| debug.current_line());
        let line = line.flatten().unwrap_or_default();
        Reply::Error(format!("@user_script: {line}: {text}"))
    };
    let is_valkey = version == Version::Valkey9;
    if words.is_empty() {
        let called = if is_valkey { "call" } else { "redis lib call" };
        return Ok(refused(if version.is_7() {
            format!("ERR Please specify at least one argument for this {called}")
        } else {
            "Please specify at least one argument for redis.call()".to_owned()
        }));
    }
    let Some(texts) = words
        .iter()
        .map(|word| Word::read(word, version))
        .collect::<Option<Vec<_>>>()
    else {
        let kinds = if is_valkey { "Command" } else { "Lua redis lib command" };
        return Ok(refused(if version.is_7() {
            format!("ERR {kinds} arguments must be strings or integers")
        } else {
            "Lua redis() command arguments must be strings or integers".to_owned()
        }));
    };
    let texts: Vec<&[u8]> = texts.iter().map(Word::bytes).collect();
    let mut place = locked(place);
    let Some((engine, caller)) = place.as_mut() else {
        return Err(mlua::Error::runtime("no script runs"));
    };
    let caller = *caller;
    Ok(match engine.ask(&caller, &texts) {
        Asked::Answered(reply) => reply,
        Asked::Refused(text) => refused(text),
    })
}

/// Returns the answer to a script that has failed.
fn told(error: &Table, hash: &str, version: Version) -> String {
    let source: String = error.raw_get("source").unwrap_or_default();
    let line: usize = error.raw_get("line").unwrap_or_default();
    let raised: Value = error.raw_get("err").unwrap_or(Value::Nil);
    if !version.is_7() {
        let text = match &raised {
            Value::Table(_) => {
                "@err_handler_def:8: err_handler_def:8: attempt to concatenate local 'err' (a table value)".to_owned()
            }
            other => format!("{source}:{line}: {}", other.to_string().unwrap_or_default()),
        };
        return format!("ERR Error running script (call to f_{hash}): {text}");
    }
    let text = match &raised {
        Value::Table(table) => table
            .raw_get::<String>("err")
            .unwrap_or_else(|_| "ERR unknown error".to_owned()),
        other => format!("ERR {}", other.to_string().unwrap_or_default()),
    };
    let named = if version == Version::Valkey9 {
        String::new()
    } else {
        format!("{hash}, ")
    };
    format!("{text} script: {named}on {source}:{line}.")
}
