//! Who asks: bearer tokens, service accounts, anonymous requests.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use ring::{
    rand::{SecureRandom as _, SystemRandom},
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        UnparsedPublicKey,
    },
};
use serde_json::{Value, json};

use crate::{
    clock::Clock,
    error::{ApiError, ApiResult},
};

/// Issuer and only audience of service account tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
}

impl User {
    /// The administrator of the kubeconfig and the in-process client.
    pub(crate) fn admin() -> Self {
        Self {
            name: "admin".to_owned(),
            uid: String::new(),
            groups: vec!["system:masters".to_owned(), AUTHENTICATED.to_owned()],
        }
    }

    fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
        }
    }

    /// Stands for whoever sent a credential that is not good.
    pub(crate) fn unknown() -> Self {
        Self {
            name: String::new(),
            uid: String::new(),
            groups: Vec::new(),
        }
    }

    fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
        }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }
}

/// What a good token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: User,
    /// Those of the audiences asked for that the token is meant for; never empty.
    pub(crate) audiences: Vec<String>,
}

/// Why the signing key could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the key that signs service account tokens: {0}")]
pub struct KeyError(String);

/// A service account, as a token names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

/// Knows the administrator's token and signs those of service accounts (JWT, ES256).
pub(crate) struct Authenticator {
    admin_token: String,
    key: EcdsaKeyPair,
    random: SystemRandom,
    clock: Clock,
}

impl Authenticator {
    /// Makes a random administrator token and a signing key.
    pub(crate) fn generate(clock: Clock) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let mut secret = [0_u8; 24];
        random
            .fill(&mut secret)
            .map_err(|error| KeyError(error.to_string()))?;
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|error| KeyError(error.to_string()))?;
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random)
                .map_err(|error| KeyError(error.to_string()))?;
        Ok(Self {
            admin_token: URL_SAFE_NO_PAD.encode(secret),
            key,
            random,
            clock,
        })
    }

    pub(crate) fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// A token of a service account, valid for that many seconds.
    ///
    /// # Errors
    /// 500 when the system has no randomness for the signature.
    pub(crate) fn sign(
        &self,
        account: Account<'_>,
        audiences: &[String],
        seconds: i64,
    ) -> ApiResult<String> {
        let now = self.clock.now().as_second();
        let Account {
            namespace,
            name,
            uid,
        } = account;
        let header = json!({"alg": "ES256", "typ": "JWT"});
        let claims = json!({
            "iss": ISSUER,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "aud": audiences,
            "iat": now, "nbf": now, "exp": now.saturating_add(seconds),
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self
            .key
            .sign(&self.random, signed.as_bytes())
            .map_err(|_| ApiError::internal("cannot sign the token"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The user of a request. `uid_of` looks up the uid of an existing service account.
    ///
    /// # Errors
    /// 401 for a credential that is unknown, malformed, expired or of a deleted account.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        uid_of: impl Fn(&str, &str) -> Option<String>,
    ) -> ApiResult<User> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(User::anonymous());
        };
        let token = value
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(ApiError::unauthorized)?;
        self.identity_of(token, &[ISSUER.to_owned()], uid_of)
            .map(|identity| identity.user)
            .ok_or_else(ApiError::unauthorized)
    }

    /// Whom a token stands for at any of the audiences; `None` if it is not good at one of them.
    pub(crate) fn identity_of(
        &self,
        token: &str,
        audiences: &[String],
        uid_of: impl Fn(&str, &str) -> Option<String>,
    ) -> Option<Identity> {
        let identity = |user: User, meant: &[&str]| {
            let shared = audiences.iter().filter(|one| meant.contains(&one.as_str()));
            let audiences: Vec<String> = shared.cloned().collect();
            (!audiences.is_empty()).then_some(Identity { user, audiences })
        };
        // Digests are compared, so that the time tells nothing of the token.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let same = digest(token).as_ref() == digest(&self.admin_token).as_ref();
        if same {
            return identity(User::admin(), &[ISSUER]);
        }
        let claims = self.verified_claims(token)?;
        let second = |key: &str| claims[key].as_i64();
        let now = self.clock.now().as_second();
        if claims["iss"] != ISSUER || second("exp")? <= now || second("nbf")? > now {
            return None;
        }
        let meant: Vec<&str> = claims["aud"]
            .as_array()?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let bound = &claims["kubernetes.io"];
        let namespace = bound["namespace"].as_str()?;
        let name = bound["serviceaccount"]["name"].as_str()?;
        let uid = bound["serviceaccount"]["uid"].as_str()?;
        if uid_of(namespace, name)? != uid {
            return None;
        }
        identity(User::service_account(namespace, name, uid), &meant)
    }

    fn verified_claims(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        let (_, claims) = signed.split_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authenticator")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bearer(token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            format!("Bearer {token}").parse().unwrap(),
        );
        headers
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_account_token_is_good_until_it_expires_or_the_account_goes() {
        let authenticator = Authenticator::generate(Clock::start()).unwrap();
        let account = Account {
            namespace: "ns",
            name: "sa",
            uid: "u1",
        };
        let token = authenticator
            .sign(account, &[ISSUER.to_owned()], 600)
            .unwrap();
        let exists = |_: &str, _: &str| Some("u1".to_owned());
        let user = authenticator.authenticate(&bearer(&token), exists).unwrap();
        assert_eq!(user.name, "system:serviceaccount:ns:sa");
        assert!(
            user.groups
                .contains(&"system:serviceaccounts:ns".to_owned())
        );

        let gone = authenticator.authenticate(&bearer(&token), |_, _| None);
        assert_eq!(gone.unwrap_err().code(), 401);
        let recreated = authenticator.authenticate(&bearer(&token), |_, _| Some("u2".to_owned()));
        assert_eq!(recreated.unwrap_err().code(), 401);

        let (signed, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", URL_SAFE_NO_PAD.encode([0_u8; 64]));
        assert!(
            authenticator
                .authenticate(&bearer(&forged), exists)
                .is_err()
        );

        let other = authenticator
            .sign(account, &["other".to_owned()], 600)
            .unwrap();
        assert!(authenticator.authenticate(&bearer(&other), exists).is_err());
        let asked = [ISSUER.to_owned(), "other".to_owned(), "third".to_owned()];
        let identity = authenticator.identity_of(&other, &asked, exists).unwrap();
        assert_eq!(identity.audiences, ["other"], "and no other is vouched for");

        tokio::time::advance(Duration::from_secs(601)).await;
        assert!(authenticator.authenticate(&bearer(&token), exists).is_err());
    }

    #[tokio::test]
    async fn no_credential_is_anonymous_and_a_bad_one_is_refused() {
        let authenticator = Authenticator::generate(Clock::start()).unwrap();
        let none = |_: &str, _: &str| None;
        assert!(
            authenticator
                .authenticate(&HeaderMap::new(), none)
                .unwrap()
                .is_anonymous()
        );
        assert_eq!(
            authenticator
                .authenticate(&bearer("nonsense"), none)
                .unwrap_err()
                .code(),
            401
        );
        let admin = authenticator
            .authenticate(&bearer(authenticator.admin_token()), none)
            .unwrap();
        assert_eq!(admin, User::admin());
    }
}
