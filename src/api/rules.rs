//! The admission rules V1–V13 as one table.
//!
//! The table is the only place where a rule's field and text stand: the schema takes the CEL
//! expressions from it, [`validation`](super::validation) the texts for the same rules in Rust.
//! A text says which field it is about, what is wrong, and what to write instead.

use kube_core::cel as kube_cel_schema;

/// One admission rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Number of the rule, such as `V1`; rules that belong together share one.
    pub id: &'static str,
    /// Path of the schema node that the expression's `self` is; empty for the object itself.
    pub node: &'static str,
    /// Path below the node that a refusal points at, such as `.provider`; empty for the node.
    pub field_path: &'static str,
    /// CEL expression that must hold.
    pub expression: &'static str,
    /// How the API server words the refusal.
    pub reason: Reason,
    /// What the refusal says.
    pub text: Text,
    /// Whether `oldSelf` is an optional value, empty at creation.
    pub is_for_creation: bool,
}

/// How the API server words a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The value is wrong; the answer repeats it.
    Invalid,
    /// The field is missing.
    Required,
    /// The field may not be there, or its value may not be repeated in an answer.
    Forbidden,
}

/// What a refusal says.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// Always the same.
    Fixed(&'static str),
    /// A CEL expression that yields the text, for a text that names values.
    Computed(&'static str),
}

impl Rule {
    /// The rule as the schema holds it.
    pub(super) fn to_kube(self) -> kube_cel_schema::Rule {
        let message = match self.text {
            Text::Fixed(text) => kube_cel_schema::Message::Message(text.to_owned()),
            Text::Computed(text) => kube_cel_schema::Message::Expression(text.to_owned()),
        };
        let reason = match self.reason {
            Reason::Invalid => kube_cel_schema::Reason::FieldValueInvalid,
            Reason::Required => kube_cel_schema::Reason::FieldValueRequired,
            Reason::Forbidden => kube_cel_schema::Reason::FieldValueForbidden,
        };
        let mut rule = kube_cel_schema::Rule::new(self.expression)
            .message(message)
            .reason(reason);
        if !self.field_path.is_empty() {
            rule = rule.field_path(self.field_path);
        }
        if self.is_for_creation {
            rule = rule.optional_old_self(true);
        }
        rule
    }

    /// Path of the field that a refusal names, with `[]` for any item of a list.
    pub fn field(&self) -> String {
        format!("{}{}", self.node, self.field_path)
            .trim_start_matches('.')
            .to_owned()
    }

    const fn required(
        id: &'static str,
        node: &'static str,
        field_path: &'static str,
        expression: &'static str,
        text: &'static str,
    ) -> Rule {
        let text = Text::Fixed(text);
        Rule {
            id,
            node,
            field_path,
            expression,
            reason: Reason::Required,
            text,
            is_for_creation: false,
        }
    }

    const fn forbidden(
        id: &'static str,
        node: &'static str,
        field_path: &'static str,
        expression: &'static str,
        text: &'static str,
    ) -> Rule {
        let text = Text::Fixed(text);
        Rule {
            id,
            node,
            field_path,
            expression,
            reason: Reason::Forbidden,
            text,
            is_for_creation: false,
        }
    }

    const fn invalid(
        id: &'static str,
        node: &'static str,
        field_path: &'static str,
        expression: &'static str,
        text: Text,
    ) -> Rule {
        Rule {
            id,
            node,
            field_path,
            expression,
            reason: Reason::Invalid,
            text,
            is_for_creation: false,
        }
    }
}

/// Managed needs a provider.
pub const V1: Rule = Rule::required(
    "V1",
    "spec",
    ".provider",
    "self.mode != 'Managed' || has(self.provider)",
    "spec.provider is required when spec.mode is Managed; write the name of a configured provider, such as kubernetes",
);

/// External needs an endpoint.
pub const V2: Rule = Rule::required(
    "V2",
    "spec",
    ".endpoint",
    "self.mode != 'External' || has(self.endpoint)",
    "spec.endpoint is required when spec.mode is External; write the host and port of the proxy",
);

/// External forbids a provider.
pub const V3_PROVIDER: Rule = Rule::forbidden(
    "V3",
    "spec",
    ".provider",
    "self.mode != 'External' || !has(self.provider)",
    "spec.provider is not allowed when spec.mode is External; remove it, or set spec.mode to Managed",
);

/// External forbids a machine.
pub const V3_MACHINE: Rule = Rule::forbidden(
    "V3",
    "spec",
    ".machine",
    "self.mode != 'External' || !has(self.machine)",
    "spec.machine is not allowed when spec.mode is External; remove it, or set spec.mode to Managed",
);

/// External forbids user data.
pub const V3_CLOUD_INIT: Rule = Rule::forbidden(
    "V3",
    "spec",
    ".cloudInit",
    "self.mode != 'External' || !has(self.cloudInit)",
    "spec.cloudInit is not allowed when spec.mode is External; remove it, or set spec.mode to Managed",
);

/// External forbids planned replacement.
pub const V3_ROTATION: Rule = Rule::forbidden(
    "V3",
    "spec",
    ".rotation",
    "self.mode != 'External' || !has(self.rotation)",
    "spec.rotation is not allowed when spec.mode is External; remove it, or set spec.mode to Managed",
);

/// External forbids a port beside the endpoint's.
pub const V3_PORT: Rule = Rule::forbidden(
    "V3",
    "spec",
    ".port",
    "self.mode != 'External' || !has(self.port)",
    "spec.port is not allowed when spec.mode is External; write the port in spec.endpoint.port",
);

/// Managed forbids an endpoint.
pub const V4: Rule = Rule::forbidden(
    "V4",
    "spec",
    ".endpoint",
    "self.mode != 'Managed' || !has(self.endpoint)",
    "spec.endpoint is not allowed when spec.mode is Managed; remove it, or set spec.mode to External",
);

/// User data has exactly one source.
pub const V5: Rule = Rule::invalid(
    "V5",
    "spec.cloudInit",
    "",
    "has(self.inline) != has(self.secretRef)",
    Text::Fixed(
        "spec.cloudInit must have exactly one source; write either spec.cloudInit.inline or spec.cloudInit.secretRef",
    ),
);

/// A machine is a pod or a virtual machine.
pub const V6: Rule = Rule::invalid(
    "V6",
    "spec.machine",
    "",
    "!has(self.kubernetes) || !has(self.gce)",
    Text::Fixed(
        "spec.machine must not have both kubernetes and gce; keep the one that spec.provider uses",
    ),
);

/// The provider of a Managed proxy stays.
pub const V7: Rule = Rule::forbidden(
    "V7",
    "spec",
    ".provider",
    "self.mode != 'Managed' || oldSelf.mode != 'Managed' || !has(self.provider) || !has(oldSelf.provider) || self.provider == oldSelf.provider",
    "spec.provider cannot change while spec.mode stays Managed; write the former provider, or delete the Proxy and create it anew",
);

/// A probe ends before the next begins.
///
/// Both fields are there in every object; only the schema's own default `{}` is judged without
/// them when the definition is created.
pub const V8: Rule = Rule::invalid(
    "V8",
    "spec.healthCheck",
    ".timeoutSeconds",
    "!has(self.timeoutSeconds) || !has(self.intervalSeconds) || self.timeoutSeconds <= self.intervalSeconds",
    Text::Computed(
        "'spec.healthCheck.timeoutSeconds is %d, more than spec.healthCheck.intervalSeconds, which is %d; write a shorter timeout or a longer interval'.format([self.timeoutSeconds, self.intervalSeconds])",
    ),
);

/// Certificates are for https.
pub const V9: Rule = Rule::forbidden(
    "V9",
    "spec",
    ".tls",
    "!has(self.tls) || self.protocol == 'https'",
    "spec.tls is only allowed when spec.protocol is https; remove it, or set spec.protocol to https",
);

/// Keys of tags fit every provider.
pub const TAG_KEYS: Rule = Rule::invalid(
    "C-01",
    "spec.tags",
    "",
    "self.all(key, key.matches('^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$'))",
    Text::Fixed(
        "spec.tags must have keys that match ^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$; write for example crawl-team",
    ),
);

/// A prefix of tags is the operator's.
pub const V10: Rule = Rule::invalid(
    "V10",
    "spec.tags",
    "",
    "self.all(key, !key.startsWith('pxo-'))",
    Text::Fixed(
        "spec.tags must not have keys that begin with pxo-, which the operator uses itself; write another prefix",
    ),
);

/// A host is no URL.
pub const V11: Rule = Rule::invalid(
    "V11",
    "spec.endpoint.host",
    "",
    r"!self.matches('[/\\s\\[\\]]')",
    Text::Fixed(
        "spec.endpoint.host must be a host only, without scheme, path, space or brackets; write for example proxy.example.com, 192.0.2.7 or 2001:db8::7",
    ),
);

/// A host is a name or an address. Silent where [`V11`] speaks.
pub const V11_FORM: Rule = Rule::invalid(
    "V11",
    "spec.endpoint.host",
    "",
    r"self.matches('[/\\s\\[\\]]') || isIP(self) || self.matches('^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?[.]?$')",
    Text::Fixed(
        "spec.endpoint.host must be a DNS name, an IPv4 address or a bare IPv6 address; write the port in spec.endpoint.port",
    ),
);

/// A check URL is http or https.
pub const V12: Rule = Rule::forbidden(
    "V12",
    "spec.healthCheck.urls[]",
    "",
    r"self.matches('^[hH][tT][tT][pP][sS]?://[^/?#\\s]')",
    "spec.healthCheck.urls must begin with http:// or https:// and a host; write for example https://check.example.com/ip",
);

/// A check URL carries no credentials.
pub const V12_USERINFO: Rule = Rule::forbidden(
    "V12",
    "spec.healthCheck.urls[]",
    "",
    "!self.matches('^[^/?#]*//[^/?#]*@')",
    "spec.healthCheck.urls must not carry a user name or password; remove what stands between // and @",
);

/// The name fits a label.
///
/// Judged at creation only: a name never changes, and unlike a rule of a field, one of the object
/// would otherwise be judged anew at each change of the status or of the finalizers, so that an
/// object with a longer name could neither be reported on nor deleted.
pub const V13: Rule = Rule {
    is_for_creation: true,
    ..Rule::invalid(
        "V13",
        "",
        ".metadata.name",
        "oldSelf.hasValue() || self.metadata.name.size() <= 63",
        Text::Fixed(
            "metadata.name must have at most 63 characters, since it becomes a label of the machine; write a shorter name",
        ),
    )
};

/// Every rule, in the order in which refusals are listed.
pub const ALL: &[Rule] = &[
    V1,
    V2,
    V3_PROVIDER,
    V3_MACHINE,
    V3_CLOUD_INIT,
    V3_ROTATION,
    V3_PORT,
    V4,
    V5,
    V6,
    V7,
    V8,
    V9,
    TAG_KEYS,
    V10,
    V11,
    V11_FORM,
    V12,
    V12_USERINFO,
    V13,
];
