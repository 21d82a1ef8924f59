use super::*;

#[test]
fn old_and_new_spellings_of_a_reason_are_one() {
    assert_eq!(spelled("rateLimitExceeded"), spelled("RATE_LIMIT_EXCEEDED"));
    assert_ne!(spelled("quotaExceeded"), spelled("rateLimitExceeded"));
}

#[test]
fn t52_every_code_of_an_operation_has_its_verdict() {
    for (code, want) in [
        ("QUOTA_EXCEEDED", Some(Reason::Quota)),
        ("QUOTA_EXCEEDED_IN_REGION", Some(Reason::Quota)),
        (
            "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
            Some(Reason::Throttled),
        ),
        ("RATE_LIMIT_EXCEEDED", Some(Reason::Throttled)),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", Some(Reason::Capacity)),
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            Some(Reason::Capacity),
        ),
        ("RESOURCE_POOL_EXHAUSTED", Some(Reason::Capacity)),
        ("IP_SPACE_EXHAUSTED", Some(Reason::Capacity)),
        ("IP_SPACE_EXHAUSTED_WITH_DETAILS", Some(Reason::Capacity)),
        ("INTERNAL_ERROR", Some(Reason::Unavailable)),
        ("SOMETHING_NEW", None),
    ] {
        let verdict = operation_verdict(code);
        assert_eq!(verdict.reason, want, "{code}");
        let wait = (want == Some(Reason::Throttled)).then_some(THROTTLED_RETRY);
        assert_eq!(verdict.retry_after, wait, "{code}");
    }
}

#[test]
fn an_operation_that_failed_without_a_code_is_told_by_its_status() {
    let operation = |json: serde_json::Value| serde_json::from_value(json).expect("an operation");
    let of_status = |status: i32| {
        operation(serde_json::json!({ "httpErrorStatusCode": status, "httpErrorMessage": "m" }))
    };
    let code = |operation: &model::Operation| failure(operation).map(|(code, _)| code);
    assert_eq!(
        code(&of_status(503)).as_deref(),
        Some("SERVICE_UNAVAILABLE")
    );
    assert_eq!(code(&of_status(400)).as_deref(), Some("HTTP_400"));
    assert_eq!(code(&of_status(200)), None);
    assert_eq!(
        code(&operation(serde_json::json!({ "status": "DONE" }))),
        None
    );
}

#[test]
fn p04_a_text_that_repeats_metadata_is_cut_and_a_long_one_shortened() {
    let echoed = "Invalid value for field 'resource.metadata.items[4].value': 'hunter2'. Refused.";
    let shown = presentable(echoed);
    assert!(
        shown.starts_with("resource.metadata.items[4].value was refused"),
        "{shown}"
    );
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(presentable("short"), "short");
    let long = presentable(&"ä".repeat(5000)).chars().count();
    assert_eq!(long, MAX_TEXT + 1);
}

#[test]
fn the_longest_wait_that_was_asked_for_counts() {
    let answer = |seconds| {
        Refusal::Answer(Answer {
            status: 429,
            retry_after: Some(Duration::from_secs(seconds)),
            ..Answer::default()
        })
    };
    let wait = |seconds| verdict(Op::Get, &answer(seconds)).retry_after;
    assert_eq!(wait(5), Some(THROTTLED_RETRY));
    assert_eq!(wait(300), Some(Duration::from_secs(300)));
}

#[test]
fn r07_only_an_insert_can_be_wrong_by_the_proxys_own_inputs() {
    for status in [400, 403, 404, 409, 412, 413, 418, 429, 500, 503] {
        for op in [Op::Get, Op::Delete, Op::List, Op::Operation] {
            let refusal = Refusal::Answer(Answer {
                status,
                reasons: vec![spelled("invalid")],
                ..Answer::default()
            });
            let reason = verdict(op, &refusal).reason.expect("known");
            assert_ne!(reason, Reason::InvalidInput, "{op:?} {status}");
        }
    }
}
