"""
What compilers, test runners, git, package managers, containers, clouds and agents really write when something fails.

Each message has the category that a person would give it; "fatal" is what adw knows nothing about. A message is a trap
when a search for "port", "disk", "space", "config", "missing", "not found", "timeout", "connection" and "network" anywhere
in it would give it a category that is wrong.
"""

# ruff: noqa: E501, RUF001 - the messages stand as the programs write them

from __future__ import annotations

RESOURCE = [
    # the plain texts of the design document
    ("document", "port 9100 in use"),
    ("document", "port is already allocated"),
    ("document", "No free port available"),
    ("document", "Insufficient disk space"),
    ("document", "not enough disk space"),
    ("document", "out of disk"),
    ("document", "Port 9101 is already in use"),
    (
        "docker",
        (
            "Error response from daemon: driver failed programming external connectivity on endpoint web (3f2ab1): "
            "Bind for 0.0.0.0:8080 failed: port is already allocated."
        ),
    ),
    (
        "docker",
        (
            "docker: Error response from daemon: Ports are not available: exposing port TCP 0.0.0.0:5432 -> 0.0.0.0:0: "
            "listen tcp 0.0.0.0:5432: bind: address already in use."
        ),
    ),
    ("docker", "failed to register layer: write /usr/lib/x86_64-linux-gnu/libLLVM-15.so.1: no space left on device"),
    ("node", "Error: listen EADDRINUSE: address already in use :::3000"),
    ("vite", "Error: Port 5173 is already in use"),
    ("spring", "Web server failed to start. Port 8080 was already in use."),
    ("django", "Error: That port is already in use."),
    ("go", "listen tcp :8080: bind: address already in use"),
    ("react-scripts", "Something is already running on port 3000."),
    (
        "flask",
        (
            "Address already in use\nPort 5000 is in use by another program. Either identify and stop that program, or "
            "start the server with a different port."
        ),
    ),
    ("uvicorn", "[Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"),
    (
        "npm",
        (
            "npm error code ENOSPC\nnpm error syscall write\nnpm error errno -28\nnpm error nospc ENOSPC: no space left on "
            "device, write"
        ),
    ),
    ("pip", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"),
    ("git", "fatal: write error: No space left on device"),
    ("apt", "E: You don't have enough free space in /var/cache/apt/archives/."),
    ("sqlite", "sqlite3.OperationalError: database or disk is full"),
    ("windows", "There is not enough space on the disk."),
    ("cp", "cp: error writing 'out.bin': Disk quota exceeded"),
    ("gcc", "main.c:12:1: fatal error: error writing to /tmp/ccUZtL3s.s: No space left on device"),
    ("node", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"),
    ("java", 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'),
    ("go", "fatal error: runtime: out of memory"),
    ("node", "Error: EMFILE: too many open files, open '/app/node_modules/a/index.js'"),
    ("python", "OSError: [Errno 24] Too many open files: '/srv/app/report.py'"),
    ("claude", "Prompt is too long"),
    (
        "openai",
        (
            "Error code: 400 - {'error': {'message': \"This model's maximum context length is 128000 tokens.\", 'type': "
            "'invalid_request_error', 'param': 'messages', 'code': 'context_length_exceeded'}}"
        ),
    ),
]

CONFIGURATION = [
    # the plain texts of the design document
    ("document", "missing ANTHROPIC_API_KEY"),
    ("document", "Spec file not found: specs/issue-42-adw-1a2b3c4d-report.md"),
    ("document", "file not found"),
    ("document", "Missing plan_file in state"),
    ("document", "Claude Code CLI is not installed"),
    ("document", "State file not found: agents/1a2b3c4d/adw_state.json"),
    ("document", "State missing required fields: ['adw_id', 'issue_number']"),
    ("git", "fatal: not a git repository (or any of the parent directories): .git"),
    (
        "git",
        "remote: Repository not found.\nfatal: repository 'https://github.com/acme/report.git/' not found",
    ),
    (
        "git",
        (
            "git@github.com: Permission denied (publickey).\nfatal: Could not read from remote repository.\n\nPlease make "
            "sure you have the correct access rights\nand the repository exists."
        ),
    ),
    ("git", "fatal: Authentication failed for 'https://github.com/acme/workspace.git/'"),
    ("git", "fatal: could not read Username for 'https://github.com': terminal prompts disabled"),
    (
        "git",
        (
            "remote: Permission to acme/widget.git denied to bot.\nfatal: unable to access "
            "'https://github.com/acme/widget.git/': The requested URL returned error: 403"
        ),
    ),
    (
        "git",
        (
            "fatal: detected dubious ownership in repository at '/srv/workspace'\nTo add an exception for this directory, "
            "call:\n\n\tgit config --global --add safe.directory /srv/workspace"
        ),
    ),
    ("git", "fatal: unable to auto-detect email address (got 'ci@runner.(none)')"),
    ("git", "fatal: bad config line 3 in file .git/config"),
    (
        "gh",
        (
            "gh: To use GitHub CLI in a GitHub Actions workflow, set the GH_TOKEN environment variable. Example:\n  env:\n"
            "    GH_TOKEN: ${{ github.token }}"
        ),
    ),
    ("gh", "To get started with GitHub CLI, please run:  gh auth login"),
    ("gh", "HTTP 401: Bad credentials (https://api.github.com/graphql)"),
    ("npm", "npm error code E401\nnpm error Incorrect or missing password."),
    (
        "npm",
        (
            "npm error code ENOENT\nnpm error syscall open\nnpm error path /app/package.json\nnpm error enoent Could not "
            "read package.json: Error: ENOENT: no such file or directory, open '/app/package.json'"
        ),
    ),
    ("npm", 'npm error Missing script: "build"'),
    ("dash", "sh: 1: vite: not found"),
    ("bash", "bash: line 1: ruff: command not found"),
    ("zsh", "zsh: command not found: pnpm"),
    ("bash", "deploy.sh: line 3: ANTHROPIC_API_KEY: unbound variable"),
    ("docker", 'exec: "claude": executable file not found in $PATH: unknown'),
    (
        "docker",
        (
            "Error response from daemon: pull access denied for acme/report, repository does not exist or may require "
            "'docker login': denied: requested access to the resource is denied"
        ),
    ),
    (
        "docker",
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
    ),
    ("docker", "ERROR: failed to solve: failed to read dockerfile: open Dockerfile: no such file or directory"),
    ("aws", 'Unable to locate credentials. You can configure credentials by running "aws configure".'),
    (
        "aws",
        "An error occurred (ExpiredToken) when calling the ListBuckets operation: The provided token has expired.",
    ),
    (
        "aws",
        (
            "An error occurred (InvalidClientTokenId) when calling the GetCallerIdentity operation: The security token "
            "included in the request is invalid."
        ),
    ),
    (
        "aws",
        (
            "upload failed: ./report.csv to s3://acme/report.csv An error occurred (AccessDenied) when calling the "
            "PutObject operation: Access Denied"
        ),
    ),
    ("aws", "The config profile (prod) could not be found"),
    ("aws", 'You must specify a region. You can also configure your region by running "aws configure".'),
    ("gcloud", "ERROR: (gcloud.run.deploy) You do not currently have an active account selected."),
    ("gcloud", "ERROR: (gcloud.builds.submit) PERMISSION_DENIED: The caller does not have permission"),
    ("az", "ERROR: Please run 'az login' to setup account."),
    (
        "az",
        (
            "(AuthorizationFailed) The client 'bot' with object id '3f2a' does not have authorization to perform action "
            "'Microsoft.Web/sites/read' over scope '/subscriptions/3f2a' or the scope is invalid."
        ),
    ),
    ("kubectl", "error: You must be logged in to the server (Unauthorized)"),
    (
        "kubectl",
        (
            'Error from server (Forbidden): pods is forbidden: User "bot" cannot list resource "pods" in API group "" in '
            'the namespace "staging"'
        ),
    ),
    ("pip", "ERROR: Could not open requirements file: [Errno 2] No such file or directory: 'requirements-dev.txt'"),
    ("python", "ModuleNotFoundError: No module named 'yaml'"),
    ("python", "ImportError: cannot import name 'report' from 'acme'"),
    ("node", "Error: Cannot find module 'express'\nRequire stack:\n- /app/server.js"),
    ("node", "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'vite' imported from /app/vite.config.js"),
    ("vite", "error: failed to load config from /app/report/vite.config.ts"),
    ("github actions", "Error: Could not load credentials from any providers"),
    ("ssh", "Host key verification failed.\nfatal: Could not read from remote repository."),
    ("pytest", "ERROR: file or directory not found: tests/unit"),
    ("pytest", "pytest: error: unrecognized arguments: --cov=report"),
    ("eslint", "ESLint couldn't find an eslint.config.(js|mjs|cjs) file."),
    ("tsc", "error TS5058: The specified path does not exist: 'tsconfig.report.json'."),
    ("go", "go: go.mod file not found in current directory or any parent directory; see 'go help modules'"),
    ("cargo", "error: could not find `Cargo.toml` in `/srv/workspace` or any parent directory"),
    ("rustc", "error: linker `cc` not found"),
    ("clang", "main.c:1:10: fatal error: 'stdio.h' file not found"),
    ("mvn", "The JAVA_HOME environment variable is not defined correctly,\nthis environment variable is needed to run"),
    ("curl", "curl: (60) SSL certificate problem: unable to get local issuer certificate"),
    (
        "psql",
        (
            'psql: error: connection to server at "localhost" (127.0.0.1), port 5432 failed: FATAL:  password '
            'authentication failed for user "adw"'
        ),
    ),
    ("claude", "Invalid API key · Please run /login"),
    ("claude", "Credit balance is too low"),
    ("codex", "unexpected status 401 Unauthorized: Missing bearer or basic authentication in header"),
    (
        "gemini",
        (
            "Please set an Auth method in your /home/bot/.gemini/settings.json or specify one of the following environment "
            "variables before running: GEMINI_API_KEY, GOOGLE_GENAI_USE_VERTEXAI, GOOGLE_GENAI_USE_GCA"
        ),
    ),
    (
        "openai",
        (
            "The api_key client option must be set either by passing api_key to the client or by setting the "
            "OPENAI_API_KEY environment variable"
        ),
    ),
    (
        "aider",
        'litellm.AuthenticationError: AnthropicException - {"type":"error","error":{"type":"authentication_error"}}',
    ),
]

TRANSIENT = [
    ("git", "fatal: unable to access 'https://github.com/acme/report.git/': Could not resolve host: github.com"),
    (
        "git",
        "ssh: connect to host github.com port 22: Connection timed out\nfatal: Could not read from remote repository.",
    ),
    (
        "git",
        (
            "error: RPC failed; HTTP 502 curl 22 The requested URL returned error: 502\nfatal: the remote end hung up "
            "unexpectedly"
        ),
    ),
    (
        "git",
        (
            "fatal: unable to access 'https://github.com/acme/widget.git/': Failed to connect to github.com port 443 after "
            "130 ms: Couldn't connect to server"
        ),
    ),
    (
        "git",
        (
            "fatal: unable to access 'https://github.com/acme/widget.git/': gnutls_handshake() failed: The TLS connection "
            "was non-properly terminated."
        ),
    ),
    ("git", "error: RPC failed; curl 56 GnuTLS recv error (-54): Error in the pull function.\nfatal: early EOF"),
    ("ssh", "kex_exchange_identification: Connection closed by remote host\nConnection closed by 140.82.121.4 port 22"),
    ("git", "fatal: Unable to create '/srv/workspace/.git/index.lock': File exists."),
    ("gh", "error connecting to api.github.com\ncheck your internet connection or https://githubstatus.com"),
    ("gh", "HTTP 502: Bad Gateway (https://api.github.com/graphql)"),
    (
        "npm",
        (
            "npm error code ECONNRESET\nnpm error network aborted\nnpm error network This is a problem related to network "
            "connectivity.\nnpm error network In most cases you are behind a proxy or have bad network settings.\nnpm error "
            "network 'proxy' config is set properly.  See: 'npm help config'"
        ),
    ),
    ("npm", "npm error code ERR_SOCKET_TIMEOUT\nnpm error network Socket timeout"),
    (
        "npm",
        (
            "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo\nnpm error errno EAI_AGAIN\nnpm error request to "
            "https://registry.example.com/report failed, reason: getaddrinfo EAI_AGAIN registry.example.com"
        ),
    ),
    ("npm", "npm error code E503\nnpm error 503 Service Unavailable - GET https://registry.example.com/react"),
    ("yarn", 'error An unexpected error occurred: "https://registry.yarnpkg.com/react: ESOCKETTIMEDOUT".'),
    (
        "pip",
        (
            "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection "
            "broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to "
            "establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/report/"
        ),
    ),
    (
        "pip",
        (
            "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.example.org', "
            "port=443): Read timed out."
        ),
    ),
    (
        "docker",
        (
            'Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting '
            "for connection (Client.Timeout exceeded while awaiting headers)"
        ),
    ),
    (
        "docker",
        (
            'failed to do request: Head "https://registry-1.docker.io/v2/library/python/manifests/3.12": dial tcp: lookup '
            "registry-1.docker.io on 127.0.0.53:53: no such host"
        ),
    ),
    ("docker", "received unexpected HTTP status: 500 Internal Server Error"),
    ("go", "dial tcp 140.82.121.3:443: i/o timeout"),
    ("go", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
    ("kubectl", "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?"),
    ("kubectl", "Unable to connect to the server: net/http: TLS handshake timeout"),
    ("aws", 'Could not connect to the endpoint URL: "https://s3.eu-west-1.amazonaws.com/report"'),
    (
        "aws",
        (
            "An error occurred (ServiceUnavailable) when calling the PutObject operation (reached max retries: 4): Service "
            "Unavailable"
        ),
    ),
    ("gcloud", "ERROR: (gcloud.builds.submit) UNAVAILABLE: The service is currently unavailable."),
    (
        "gcloud",
        (
            "ERROR: gcloud crashed (ConnectionError): HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max "
            "retries exceeded with url: /token (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at "
            "0x7f>: Failed to establish a new connection: [Errno 101] Network is unreachable'))"
        ),
    ),
    ("az", "HTTPSConnectionPool(host='management.azure.com', port=443): Read timed out. (read timeout=300)"),
    (
        "psycopg",
        (
            'psycopg.OperationalError: connection failed: connection to server at "127.0.0.1", port 5432 failed: Connection '
            "refused\n\tIs the server running on that host and accepting TCP/IP connections?"
        ),
    ),
    ("sqlite", "sqlite3.OperationalError: database is locked"),
    ("curl", "curl: (6) Could not resolve host: transport.example.com"),
    ("curl", "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received"),
    ("curl", "curl: (7) Failed to connect to localhost port 9100 after 0 ms: Connection refused"),
    (
        "requests",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.acme.com', port=443): Read timed out.",
    ),
    ("chromium", "Error: page.goto: net::ERR_CONNECTION_REFUSED at http://localhost:9200/report"),
    ("playwright", "page.click: Timeout 30000ms exceeded."),
    ("ruby", "Net::ReadTimeout: Net::ReadTimeout with #<TCPSocket:(closed)>"),
    (
        "node",
        "Error: connect ECONNREFUSED 127.0.0.1:5432\n  errno: -111,\n  code: 'ECONNREFUSED',\n  syscall: 'connect'",
    ),
    ("claude", 'API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
    ("claude", "API Error (Connection error.) · Retrying in 5 seconds… (attempt 4/10)"),
    ("claude", "API Error: Request timed out."),
    ("claude", 'API Error: 500 {"type":"error","error":{"type":"api_error","message":"Internal server error"}}'),
    (
        "codex",
        (
            "stream error: stream disconnected before completion: Transport error: error decoding response body; retrying "
            "5/5 in 3.1s…"
        ),
    ),
    ("codex", "Selected model is at capacity. Please try a different model."),
    ("gemini", "[API Error: The model is overloaded. Please try again later. (Status: UNAVAILABLE)]"),
    ("gemini", "TypeError: fetch failed"),
    ("document", "Connection refused to config server"),
    ("document", "read timeout: resource not found yet"),
    ("document", "network error"),
    ("document", "timeout"),
]

RATE_LIMIT = [
    ("document", "rate limit"),
    ("gh", "HTTP 403: API rate limit exceeded for user ID 1234. (https://api.github.com/repos/acme/report)"),
    ("github", "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."),
    (
        "docker",
        (
            "toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating and "
            "upgrading: https://www.docker.com/increase-rate-limit"
        ),
    ),
    ("npm", "npm error code E429\nnpm error 429 Too Many Requests - GET https://registry.example.com/report"),
    ("pip", "ERROR: HTTP error 429 while getting https://index.example.org/simple/report/"),
    (
        "aws",
        (
            "An error occurred (ThrottlingException) when calling the InvokeModel operation (reached max retries: 4): Too "
            "many requests, please wait before trying again."
        ),
    ),
    (
        "aws",
        (
            "An error occurred (RequestLimitExceeded) when calling the DescribeInstances operation (reached max retries: "
            "4): Request limit exceeded."
        ),
    ),
    ("aws", "An error occurred (Throttling) when calling the DescribeStacks operation: Rate exceeded"),
    (
        "aws",
        (
            "upload failed: ./report.csv to s3://acme/report.csv An error occurred (SlowDown) when calling the PutObject "
            "operation (reached max retries: 4): Please reduce your request rate."
        ),
    ),
    (
        "gcloud",
        (
            "ERROR: (gcloud.projects.list) RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' and limit "
            "'Read requests per minute' of service 'cloudresourcemanager.googleapis.com'"
        ),
    ),
    (
        "az",
        (
            "(TooManyRequests) The request is being throttled as the limit has been reached for operation type - "
            "Read_ObservationWindow_00:05:00."
        ),
    ),
    ("claude", "You've hit your session limit · resets 3:45pm"),
    ("claude", "Claude AI usage limit reached|1794794537"),
    ("claude", "API Error: Request rejected (429) · This request would exceed your account's rate limit."),
    (
        "anthropic",
        (
            "Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error', 'message': 'Number of request tokens "
            "has exceeded your per-minute rate limit'}}"
        ),
    ),
    ("codex", "exceeded retry limit, last status: 429 Too Many Requests"),
    (
        "openai",
        (
            "Rate limit reached for gpt-5 in organization org-3f2a on tokens per min (TPM): Limit 30000, Used 29000, "
            "Requested 4000."
        ),
    ),
    (
        "gemini",
        "You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s.",
    ),
    ("aider", 'litellm.RateLimitError: AnthropicException - {"type":"error","error":{"type":"rate_limit_error"}}'),
]

FATAL = [
    # compilers and linters
    ("rustc", "error[E0432]: unresolved import `crate::report`"),
    ("rustc", "error[E0063]: missing field `timeout` in initializer of `Config`"),
    ("rustc", "error[E0425]: cannot find value `disk_quota` in this scope"),
    ("rustc", "error[E0433]: failed to resolve: use of undeclared crate or module `rate_limit`"),
    ("rustc", "warning: unused import: `std::net::TcpStream`"),
    ("rustc", "error[E0599]: no method named `connection_reset` found for struct `Transport` in the current scope"),
    ("clippy", "error: missing documentation for a function\n  --> src/port.rs:3:1"),
    ("tsc", "src/app.ts(3,24): error TS2305: Module '\"./report\"' has no exported member 'Report'."),
    ("tsc", "src/App.tsx:3:1 - error TS6133: 'viewport' is declared but its value is never read."),
    ("tsc", "src/net/timeout.ts:14:3 - error TS2322: Type 'string' is not assignable to type 'number'."),
    ("tsc", "error TS2741: Property 'timeout' is missing in type '{}' but required in type 'Options'."),
    ("tsc", "error TS2339: Property 'connection' does not exist on type 'Pool'."),
    ("tsc", "error TS2304: Cannot find name 'transport'."),
    ("gcc", "main.cpp:12:5: error: call of overloaded 'open(int)' is ambiguous"),
    ("gcc", 'main.c:9:3: error: missing terminating " character'),
    ("gcc", "/usr/bin/ld: report.o: undefined reference to `import_space(char const*)'"),
    ("clang", "error: reference to overloaded function could not be resolved; did you mean to call it?"),
    ("clang", "main.cpp:4:17: error: expected namespace name"),
    ("ld", "ld: symbol(s) not found for architecture arm64"),
    ("go", 'main.go:5:2: "net/http/httputil" imported and not used'),
    ("go", "./connection.go:14:9: undefined: timeout"),
    ("go", "./report.go:9:12: undefined: rateLimit"),
    ("javac", "Report.java:7: error: missing return statement"),
    ("javac", "error: cannot find symbol\n  symbol:   class DiskReport\n  location: package com.acme.space"),
    (
        "csc",
        (
            "error CS0246: The type or namespace name 'Newtonsoft' could not be found (are you missing a using directive or "
            "an assembly reference?)"
        ),
    ),
    ("mypy", "src/x.py:10: error: Overloaded function signatures 1 and 2 overlap with incompatible return types"),
    ("mypy", 'src/x.py:9: error: Missing type parameters for generic type "dict"  [type-arg]'),
    ("mypy", "src/config.py:9: error: Missing return statement  [return]"),
    ("flake8", "src/x.py:10:5: E225 missing whitespace around operator"),
    ("flake8", "src/x.py:3:12: W291 trailing whitespace"),
    ("ruff", "src/x.py:5:1: F401 `os` imported but unused"),
    ("ruff", "src/a.py:1:1: I001 Import block is un-sorted or un-formatted"),
    ("ruff", "src/x.py:1:1: D100 Missing docstring in public module"),
    ("ruff", "src/x.py:7:9: ARG001 Unused function argument: `config`"),
    ("eslint", "lib/rate-limit.js\n  12:7  error  'limiter' is assigned a value but never used  no-unused-vars"),
    ("eslint", "   4:1  error  Import in body of module; reorder to top  import/first"),
    ("eslint", "  14:3  error  Missing semicolon  semi"),
    (
        "prettier",
        "[warn] src/workspace/Port.vue\n[warn] Code style issues found in the above file. Run Prettier to fix.",
    ),
    # programs
    ("python", "ImportError: attempted relative import with no known parent package"),
    ("python", "TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
    ("python", "AttributeError: 'Transport' object has no attribute 'close'"),
    ("python", "TypeError: connect() missing 1 required positional argument: 'timeout'"),
    ("python", "KeyError: 'timeout'"),
    ("python", "KeyError: 'config'"),
    ("python", "ValueError: invalid literal for int() with base 10: 'port'"),
    ("python", "NameError: name 'RateLimitError' is not defined"),
    ("python", "ValueError: connection pool size must be positive"),
    ("python", "networkx.exception.NetworkXError: Graph has no nodes."),
    (
        "pydantic",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Transport\nport\n  Input should be less "
            "than or equal to 65535"
        ),
    ),
    ("django", 'django.db.utils.ProgrammingError: relation "report" does not exist'),
    ("jinja2", "jinja2.exceptions.UndefinedError: 'workspace' is undefined"),
    ("werkzeug", "werkzeug.routing.exceptions.BuildError: Could not build url for endpoint 'workspace'."),
    ("node", "SyntaxError: Cannot use import statement outside a module"),
    ("node", "SyntaxError: Unexpected token 'export'"),
    ("node", "TypeError: Cannot read properties of undefined (reading 'port')"),
    ("node", "TypeError: Cannot destructure property 'timeout' of 'options' as it is undefined."),
    ("node", "ReferenceError: config is not defined"),
    ("react", "Error: Objects are not valid as a React child (found: object with keys {port, disk})."),
    ("ruby", "NoMethodError: undefined method `port' for nil:NilClass"),
    ("php", 'PHP Fatal error:  Uncaught Error: Class "App\\Report" not found in /app/src/index.php:3'),
    ("go", "panic: assignment to entry in nil map\n\ngoroutine 7 [running]:\nmain.(*Report).Add(0x0)"),
    ("dotnet", "System.NullReferenceException: Object reference not set to an instance. at Acme.Report.Render()"),
    ("make", "make: *** [Makefile:12: report] Error 1"),
    # test runners
    ("pytest", "FAILED tests/test_report.py::test_totals - assert 3 == 4"),
    ("pytest", "FAILED tests/test_client.py::test_timeout_is_passed_on - AssertionError: assert 30 == 10"),
    ("pytest", "FAILED tests/test_limits.py::test_rate_limit_is_respected - assert 61 == 60"),
    ("pytest", "FAILED tests/test_ports.py::test_port_is_already_allocated - assert None is not None"),
    ("pytest", "E       AssertionError: assert 'connection refused' in 'ok'"),
    ("pytest", "E       KeyError: 'disk'"),
    ("pytest", "E       fixture 'workspace' not found"),
    ("pytest", "1 failed, 41 passed in 2.31s\nCoverage HTML written to dir reports/htmlcov"),
    ("unittest", "AssertionError: 404 != 200 : /api/report not found"),
    ("go test", "--- FAIL: TestReportRateLimit (0.00s)\n    report_test.go:21: got 429, want 200"),
    ("go test", "--- FAIL: TestTransportTimeout (0.01s)"),
    ("cargo test", "test net::tests::connection_timeout ... FAILED"),
    (
        "cargo test",
        "thread 'tests::port_in_use' panicked at src/transport.rs:42:9:\nassertion `left == right` failed",
    ),
    ("jest", "  ● Viewport › resizes when the window is small"),
    ("jest", "  ✕ returns 401 unauthorized when the token is missing (12 ms)"),
    ("mocha", "  ✗ shows a network error banner"),
    ("jest", '    Expected substring: "file not found"\n    Received string:    "ok"'),
    ("vitest", "FAIL src/network/connection.test.ts > Connection > closes once"),
    ("chai", "AssertionError: expected 'Timeout' to equal 'Deadline'"),
    ("tap", "not ok 7 - retries after a connection reset"),
    ("junit", "org.opentest4j.AssertionFailedError: expected: <no space left on device> but was: <ok>"),
    ("surefire", "Tests run: 12, Failures: 1, Errors: 0, Skipped: 0 - in com.acme.ReportTest"),
    ("surefire", "[ERROR] ReportServiceTest.importsSpaces:41 expected: <2> but was: <3>"),
    (
        "cypress",
        "AssertionError: Timed out retrying after 4000ms: Expected to find element: `#report`, but never found it.",
    ),
    ("testing-library", "TestingLibraryElementError: Unable to find an element with the text: Network settings."),
    ("rspec", "rspec ./spec/report_spec.rb:12 # Report counts the disk space"),
    # git
    (
        "git",
        (
            "error: Your local changes to the following files would be overwritten by merge:\n\tsrc/report.py\nPlease "
            "commit your changes or stash them before you merge."
        ),
    ),
    (
        "git",
        (
            "CONFLICT (content): Merge conflict in src/config.py\nAutomatic merge failed; fix conflicts and then commit the "
            "result."
        ),
    ),
    ("git", "error: pathspec 'report' did not match any file(s) known to git"),
    (
        "git",
        (
            " ! [rejected]        adw-42-report -> adw-42-report (non-fast-forward)\nerror: failed to push some refs to "
            "'github.com:acme/widget.git'"
        ),
    ),
    ("git", "fatal: a branch named 'adw-7-disk-usage' already exists"),
    ("git", "error: patch failed: src/workspace.py:12\nerror: src/workspace.py: patch does not apply"),
    ("git", "fatal: 'adw-42-report' is already used by worktree at '/srv/trees/adw-42-report'"),
    # package managers, containers, clouds
    (
        "npm",
        (
            "npm error code ERESOLVE\nnpm error ERESOLVE unable to resolve dependency tree\nnpm error Found: "
            "react-transport@1.0.0"
        ),
    ),
    ("npm", "npm warn deprecated report-missing@1.0.2: this package is no longer supported"),
    ("npm", "npm error code ENOWORKSPACES\nnpm error This command does not support workspaces."),
    ("npm", "npm warn config production Use `--omit=dev` instead."),
    ("pip", "WARNING: Skipping transport as it is not installed."),
    ("pip", "ERROR: Failed building wheel for transport-py"),
    ("pip", "ERROR: Package 'report-tools' requires a different Python: 3.10.4 not in '>=3.11'"),
    ("docker", 'ERROR: process "/bin/sh -c npm run report" did not complete successfully: exit code: 1'),
    ("docker", "The command '/bin/sh -c make import' returned a non-zero code: 2"),
    ("kubectl", 'Error from server (AlreadyExists): namespaces "report" already exists'),
    (
        "terraform",
        (
            'Error: Unsupported argument\n\n  on main.tf line 4:\n   4:   workspace = "x"\n\nAn argument named '
            '"workspace" is not expected here.'
        ),
    ),
    # agents
    ("claude", "I could not find where the report is generated, so nothing was changed."),
    ("claude", "The import path was wrong, and the workspace has no test for the transport."),
    ("claude", "The timeout handling in connection.py is not covered by a test."),
    ("codex", "The namespace of the viewport is unsupported; it was reported to the maintainers."),
    ("document", "Failed to generate report"),
    ("document", "the frobnicator is upset"),
]

#: program, message, the category that it has to get
MESSAGES = [
    (program, text, category)
    for category, rows in (
        ("resource", RESOURCE),
        ("configuration", CONFIGURATION),
        ("transient", TRANSIENT),
        ("rate_limit", RATE_LIMIT),
        ("fatal", FATAL),
    )
    for program, text in rows
]


def by_substring(text: str) -> str:
    """Return the category that a search for parts of words gives, as the design document sketches it."""
    text = text.lower()
    if "rate limit" in text:
        return "rate_limit"
    if any(part in text for part in ("port", "disk", "space")):
        return "resource"
    if any(part in text for part in ("config", "not found", "missing")):
        return "configuration"
    if any(part in text for part in ("timeout", "connection", "network")):
        return "transient"

    return "fatal"


def is_trap(text: str, category: str) -> bool:
    """Say whether the parts of words that stand in *text* would mislead."""
    return by_substring(text) not in {category, "fatal"}
