//! The `proxy-operator` program.

use std::process::ExitCode;

use proxy_operator::cli::{self, Args};

#[tokio::main]
async fn main() -> ExitCode {
    match cli::execute(Args::read()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the last word of the program")]
            {
                eprintln!("error: {}", error.line());
            }
            ExitCode::FAILURE
        }
    }
}
