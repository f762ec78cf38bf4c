//! User names and passwords that change while the process runs.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use redis::{ConnectionInfo, RedisError};

use crate::host::{FileAnswer, Mutex, caught, read_file};
use crate::store::health::ServerRole;

/// A user's name and password, as [`LockManagerBuilder::credentials`] takes them. `Debug` shows
/// neither.
///
/// [`LockManagerBuilder::credentials`]: crate::LockManagerBuilder::credentials
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Creates the credentials of this user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            password: password.into(),
        }
    }

    /// Creates the credentials of the user that the manager's URL names, or else of the server's
    /// default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
        }
    }

    fn put_into(self, info: &ConnectionInfo) -> ConnectionInfo {
        let mut redis = info.redis_settings().clone().set_password(self.password);
        if let Some(user) = self.user {
            redis = redis.set_username(user);
        }
        info.clone().set_redis_settings(redis)
    }
}

type Provided = Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send>>;

/// The source of a manager's credentials for each new connection.
#[derive(Clone, Default)]
pub(super) struct Provider {
    function: Option<Arc<dyn Fn(ServerRole) -> Provided + Send + Sync>>,
    /// The password files of masters and of sentinels.
    files: HashMap<ServerRole, Arc<PasswordFile>>,
}

#[cfg(test)]
impl Provider {
    /// Returns the password files, for tests.
    pub(super) fn paths(&self) -> Vec<(ServerRole, &Path)> {
        let files = self.files.iter();
        files.map(|(role, file)| (*role, &*file.path)).collect()
    }
}

/// A file that is read for each connection.
struct PasswordFile {
    path: Arc<Path>,
    /// The last answer, or the one that is awaited.
    read: Mutex<Option<FileAnswer>>,
}

impl PasswordFile {
    /// Reads the file. While a file system does not answer, all callers wait for the same answer, as
    /// each thread that waits for one stays until there is one.
    ///
    /// Cancel safe.
    async fn password(&self) -> io::Result<String> {
        let mut answer = {
            let mut read = self.read.lock();
            let is_awaited = |answer: &FileAnswer| answer.borrow().is_none() && answer.has_changed().is_ok();
            match read.as_ref().filter(|answer| is_awaited(answer)) {
                Some(answer) => answer.clone(),
                None => read.insert(read_file(Arc::clone(&self.path))?).clone(),
            }
        };
        let answer = answer.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        match &*answer {
            Some(Ok(text)) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
            Some(Err((kind, text))) => Err(io::Error::new(*kind, text.to_string())),
            None => Err(io::Error::other("it was not read")),
        }
    }
}

impl Provider {
    pub(super) fn set_function<F, E>(&mut self, provide: impl Fn(ServerRole) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.function = Some(Arc::new(move |role| {
            let credentials = provide(role);
            Box::pin(async move { credentials.await.map_err(Into::into) })
        }));
    }

    pub(super) fn set_file(&mut self, of: ServerRole, path: PathBuf) {
        let (path, read) = (path.into(), Mutex::default());
        self.files.insert(of, Arc::new(PasswordFile { path, read }));
    }

    /// Returns `info` with the credentials that are valid now, or as it is if none were provided.
    pub(super) async fn apply(&self, role: ServerRole, info: &ConnectionInfo) -> Result<ConnectionInfo, RedisError> {
        if let Some(file) = self.files.get(&role) {
            let password = file.password().await.map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "the password file `{}` cannot be read: {error}; let the process read it",
                        file.path.display()
                    ),
                )
            })?;
            return Ok(Credentials::password(password).put_into(info));
        }
        let Some(function) = &self.function else {
            return Ok(info.clone());
        };
        // The task that connects goes on.
        let credentials = caught(async { function(role).await }).await;
        let credentials = credentials.unwrap_or_else(|panic| Err(format!("it panicked: {panic}").into()));
        let credentials =
            credentials.map_err(|error| io::Error::other(format!("the function for credentials failed: {error}")))?;
        Ok(credentials.put_into(info))
    }
}
