//! Roles: who may do what, how a refusal reads, and what reviews tell of it.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Target, config_map, unique};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1";
const APPLY: &str = "application/apply-patch+yaml";

/// A service account of the case's namespace and its token.
struct Account<'a> {
    target: &'a Target,
    token: String,
    user: String,
}

impl<'a> Account<'a> {
    async fn new(t: &'a Target, name: &str) -> Self {
        t.post(
            t.core("serviceaccounts"),
            &json!({"metadata": {"name": name}}),
        )
        .await
        .expect(201);
        let path = t.core(&format!("serviceaccounts/{name}/token"));
        let answer = t
            .post(path, &json!({"spec": {"expirationSeconds": 3600}}))
            .await;
        let token = answer.expect(201)["status"]["token"].as_str();
        Self {
            target: t,
            token: token.unwrap_or_default().to_owned(),
            user: format!("system:serviceaccount:{}:{name}", t.namespace),
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let ask = self.target.ask(method, path).anonymous();
        let ask = ask.header("authorization", &bearer);
        match body {
            Some((media, body)) => ask.body(media, body.to_string()).send().await,
            None => ask.send().await,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(("application/json", body)))
            .await
    }

    /// Repeats a read until its code is that one: a real server takes up roles a moment later.
    async fn until(&self, path: &str, code: u16) -> Answer {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.get(path).await;
            if answer.code == code {
                return answer;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Binds a new role of the namespace with these rules.
    async fn grant(&self, name: &str, rules: Value) {
        let t = self.target;
        let roles = format!("{ROLES}/namespaces/{}", t.namespace);
        let role = json!({"metadata": {"name": name}, "rules": rules});
        t.post(format!("{roles}/roles"), &role).await.expect(201);
        t.post(
            format!("{roles}/rolebindings"),
            &self.binding(name, "Role", name),
        )
        .await
        .expect(201);
    }

    fn binding(&self, name: &str, kind: &str, role: &str) -> Value {
        let account = self.user.rsplit(':').next().unwrap_or_default();
        json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.target.namespace}],
        })
    }
}

#[tokio::test]
async fn t3_what_no_role_allows_is_forbidden() {
    let t = Target::start_with_roles().await;
    let account = Account::new(&t, "sa").await;
    let (user, namespace) = (&account.user, &t.namespace);
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let cases = [
        (
            t.core("pods"),
            "pods",
            format!(
                "cannot list resource \"pods\" in API group \"\" in the namespace \"{namespace}\""
            ),
        ),
        (
            t.core("pods/x"),
            "pods \"x\"",
            format!(
                "cannot get resource \"pods\" in API group \"\" in the namespace \"{namespace}\""
            ),
        ),
        (
            t.core("pods/x/status"),
            "pods \"x\"",
            format!(
                "cannot get resource \"pods/status\" in API group \"\" in the namespace \"{namespace}\""
            ),
        ),
        (
            "/api/v1/pods?watch=1".to_owned(),
            "pods",
            "cannot watch resource \"pods\" in API group \"\" at the cluster scope".to_owned(),
        ),
        (
            format!("{deployments}/d/scale"),
            "deployments.apps \"d\"",
            format!(
                "cannot get resource \"deployments/scale\" in API group \"apps\" in the namespace \"{namespace}\""
            ),
        ),
        (
            format!("/api/v1/namespaces/{namespace}"),
            &*format!("namespaces \"{namespace}\""),
            format!(
                "cannot get resource \"namespaces\" in API group \"\" in the namespace \"{namespace}\""
            ),
        ),
    ];
    for (path, object, why) in cases {
        let answer = account.get(&path).await;
        let expected = format!("{object} is forbidden: User \"{user}\" {why}");
        assert_eq!(answer.refused(403, "Forbidden")["message"], expected);
    }
    let metrics = account.get("/metrics").await;
    let expected = format!("forbidden: User \"{user}\" cannot get path \"/metrics\"");
    assert_eq!(metrics.refused(403, "Forbidden")["message"], expected);
    for path in [
        "/version",
        "/healthz",
        "/api",
        "/apis/apps/v1",
        "/openapi/v3",
    ] {
        account.get(path).await.expect(200);
    }
    let anonymous = |path: &'static str| t.ask(Method::GET, path).anonymous().send();
    anonymous("/version").await.expect(200);
    let stranger = anonymous("/api").await;
    assert_eq!(
        stranger.refused(403, "Forbidden")["message"],
        "forbidden: User \"system:anonymous\" cannot get path \"/api\""
    );
}

#[tokio::test]
async fn t3_a_role_allows_its_verbs_resources_and_names_and_no_more() {
    let t = Target::start_with_roles().await;
    t.config_map("one").await;
    let account = Account::new(&t, "sa").await;
    let rules = json!([
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one"]},
    ]);
    account.grant("reader", rules).await;
    account.until(&t.core("pods"), 200).await;
    account
        .get(&t.core("pods/x"))
        .await
        .refused(403, "Forbidden");
    account.get("/api/v1/pods").await.refused(403, "Forbidden");
    account.get(&t.core("configmaps/one")).await.expect(200);
    account
        .get(&t.core("configmaps/two"))
        .await
        .refused(403, "Forbidden");
    account
        .get(&t.core("configmaps"))
        .await
        .refused(403, "Forbidden");
    let one = t.core("configmaps?fieldSelector=metadata.name%3Done");
    account.get(&one).await.expect(200);
    // What is taken away is gone.
    let binding = format!("{ROLES}/namespaces/{}/rolebindings/reader", t.namespace);
    t.delete(binding).await.expect(200);
    account.until(&t.core("pods"), 403).await;
}

#[tokio::test]
async fn t3_making_by_update_or_apply_needs_the_right_to_create() {
    let t = Target::start_with_roles().await;
    let account = Account::new(&t, "sa").await;
    let rules = json!([
        {"verbs": ["get", "patch"], "apiGroups": [""], "resources": ["configmaps"]},
        {"verbs": ["update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
    ]);
    account.grant("writer", rules).await;
    account.until(&t.core("configmaps/a"), 404).await;
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let path = format!("{}/a?fieldManager=m", t.config_maps());
    let refused = account
        .send(Method::PATCH, &path, Some((APPLY, &config)))
        .await;
    assert_eq!(
        refused.refused(403, "Forbidden")["message"],
        format!(
            "configmaps \"a\" is forbidden: User \"{}\" cannot create resource \"configmaps\" in API group \
             \"\" in the namespace \"{}\"",
            account.user, t.namespace
        )
    );
    t.post(t.config_maps(), &config_map("a")).await.expect(201);
    account
        .send(Method::PATCH, &path, Some((APPLY, &config)))
        .await
        .expect(200);
    let lease = json!({"metadata": {"name": "l"}, "spec": {}});
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases/l",
        t.namespace
    );
    account
        .send(Method::PUT, &path, Some(("application/json", &lease)))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn t3_bindings_of_missing_roles_are_told_in_refusals() {
    let t = Target::start_with_roles().await;
    let account = Account::new(&t, "sa").await;
    let bindings = format!("{ROLES}/namespaces/{}/rolebindings", t.namespace);
    t.post(&bindings, &account.binding("gone", "Role", "none"))
        .await
        .expect(201);
    let told = "rbac: RBAC: role.rbac.authorization.k8s.io \"none\" not found";
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let answer = account.get(&t.core("pods")).await;
        let text = answer.refused(403, "Forbidden")["message"].as_str();
        if text.unwrap_or_default().ends_with(told) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn case_024_reviews_tell_what_roles_allow() {
    let t = Target::start_with_roles().await;
    let account = Account::new(&t, "sa").await;
    let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]);
    account.grant("reader", rules.clone()).await;
    account.until(&t.core("pods"), 200).await;
    let of = |resource: &str| {
        json!({"spec": {"resourceAttributes": {
            "verb": "list", "resource": resource, "namespace": t.namespace,
        }}})
    };
    let own = format!("{REVIEWS}/selfsubjectaccessreviews");
    let yes = account.post(&own, &of("pods")).await;
    assert_eq!(
        yes.expect(201)["status"],
        json!({"allowed": true, "reason": format!(
            "RBAC: allowed by RoleBinding \"reader/{0}\" of Role \"reader\" to ServiceAccount \"sa/{0}\"",
            t.namespace
        )})
    );
    let no = account.post(&own, &of("secrets")).await;
    assert_eq!(no.expect(201)["status"], json!({"allowed": false}));
    let masters = t.post(&own, &of("secrets")).await;
    assert_eq!(masters.expect(201)["status"], json!({"allowed": true}));
    // Asking about others is a right of its own.
    let others = format!("{REVIEWS}/subjectaccessreviews");
    account
        .post(&others, &of("pods"))
        .await
        .refused(403, "Forbidden");
    let mut about = of("pods");
    about["spec"]["user"] = json!(account.user);
    let told = t.post(&others, &about).await;
    assert_eq!(told.expect(201)["status"]["allowed"], true);
    about["spec"]["user"] = json!("somebody");
    let told = t.post(&others, &about).await;
    assert_eq!(told.expect(201)["status"], json!({"allowed": false}));
    about["spec"]["groups"] = json!(["system:masters"]);
    let told = t.post(&others, &about).await;
    assert_eq!(told.expect(201)["status"]["allowed"], true);
    let all = format!("{REVIEWS}/selfsubjectrulesreviews");
    let rules_of = account
        .post(&all, &json!({"spec": {"namespace": t.namespace}}))
        .await;
    let status = &rules_of.expect(201)["status"];
    let has = |list: &Value, rule: &Value| list.as_array().is_some_and(|all| all.contains(rule));
    assert!(has(&status["resourceRules"], &rules[0]), "{status}");
    assert_eq!(status["incomplete"], false);
    assert!(
        status["nonResourceRules"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{status}"
    );
}

#[tokio::test]
async fn case_024_reviews_that_ask_nothing_are_refused() {
    let t = Target::start().await;
    let resource = json!({"verb": "list", "resource": "pods", "namespace": t.namespace});
    let path = json!({"verb": "get", "path": "/x"});
    let own = format!("{REVIEWS}/selfsubjectaccessreviews");
    let others = format!("{REVIEWS}/subjectaccessreviews");
    let local = format!(
        "{REVIEWS}/namespaces/{}/localsubjectaccessreviews",
        t.namespace
    );
    let elsewhere = json!({"verb": "list", "resource": "pods", "namespace": "other"});
    let cases = [
        (&own, json!({}), "spec"),
        (
            &own,
            json!({"resourceAttributes": resource, "nonResourceAttributes": path}),
            "spec",
        ),
        (
            &others,
            json!({"resourceAttributes": resource}),
            "spec.user",
        ),
        (
            &local,
            json!({"user": "u", "resourceAttributes": elsewhere}),
            "spec.resourceAttributes.namespace",
        ),
        (
            &local,
            json!({"user": "u", "nonResourceAttributes": path}),
            "spec.nonResourceAttributes",
        ),
    ];
    for (to, spec, field) in cases {
        let mut review = json!({"spec": spec});
        if std::ptr::eq(to, &raw const local) {
            review["metadata"] = json!({"namespace": t.namespace});
        }
        t.post(to.as_str(), &review)
            .await
            .invalid("FieldValueInvalid", field);
    }
}

/// What a metrics endpoint does: whose token is it, and may they read the path?
#[tokio::test]
async fn case_123_a_token_and_a_path_are_reviewed_for_an_endpoint() {
    let t = Target::start_with_roles().await;
    let (server, scraper) = (
        Account::new(&t, "server").await,
        Account::new(&t, "scraper").await,
    );
    let review = |token: &str| json!({"spec": {"token": token}});
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    server
        .post(tokens, &review(&scraper.token))
        .await
        .refused(403, "Forbidden");
    let role = unique("endpoint");
    let rules = json!([
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"]},
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"]},
    ]);
    let reader = unique("scraper");
    let reads = json!([{"verbs": ["get"], "nonResourceURLs": ["/case/metrics"]}]);
    for (name, rules, account) in [(&role, rules, &server), (&reader, reads, &scraper)] {
        let body = json!({"metadata": {"name": name}, "rules": rules});
        t.post(format!("{ROLES}/clusterroles"), &body)
            .await
            .expect(201);
        t.post(
            format!("{ROLES}/clusterrolebindings"),
            &account.binding(name, "ClusterRole", name),
        )
        .await
        .expect(201);
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let reviewed = loop {
        let answer = server.post(tokens, &review(&scraper.token)).await;
        if answer.code == 201 {
            break answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let status = &reviewed.json["status"];
    assert_eq!(status["authenticated"], true, "{reviewed:?}");
    assert_eq!(status["user"]["username"], scraper.user);
    let groups = status["user"]["groups"].clone();
    assert!(
        groups
            .as_array()
            .is_some_and(|all| all.contains(&json!("system:authenticated"))),
        "{groups}"
    );
    let unknown = server.post(tokens, &review("nonsense")).await;
    let status = &unknown.expect(201)["status"];
    assert!(status["authenticated"] != true, "{status}");
    assert!(status["error"].is_string(), "{status}");
    let access = |path: &str| {
        json!({"spec": {
            "user": scraper.user, "groups": groups,
            "nonResourceAttributes": {"verb": "get", "path": path},
        }})
    };
    let others = format!("{REVIEWS}/subjectaccessreviews");
    let yes = server.post(&others, &access("/case/metrics")).await;
    assert_eq!(yes.expect(201)["status"]["allowed"], true);
    let no = server.post(&others, &access("/case/other")).await;
    assert_eq!(no.expect(201)["status"]["allowed"], false);
    for name in [&role, &reader] {
        t.delete(format!("{ROLES}/clusterrolebindings/{name}"))
            .await
            .expect(200);
        t.delete(format!("{ROLES}/clusterroles/{name}"))
            .await
            .expect(200);
    }
}
