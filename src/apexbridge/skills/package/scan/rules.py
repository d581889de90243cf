"""The rules of the scan, for text that is lower case, normalised, and free of invisible characters.

Every repetition is bounded, so that a rule costs at most linear time for any text. `triggers` are literals, one of
which each match contains: most rules are skipped for most files.
"""

import re
from dataclasses import dataclass
from typing import Literal

from apexbridge.skills import Severity

Kind = Literal[
    "override",
    "hidden-text",
    "unicode",
    "credentials",
    "remote-code",
    "exfiltration",
    "persistence",
    "obfuscation",
    "binary",
    "link",
    "deception",
    "prerequisite",
]
W = r"[ \t*`\">-]{1,10}"
"""Between two words."""
SOME = rf"(?:[a-z0-9'’]{{1,20}}{W})"
"""A word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    kind: Kind
    text: Severity | None
    """Severity in text for the model, such as Markdown; None if the rule is not for text."""
    code: Severity | None
    """Severity in scripts and other files; None if the rule is not for them."""
    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    why: str
    by_address: bool = False
    """Whether the severity depends on the address in the match."""


def _rule(
    id: str,
    kind: Kind,
    pattern: str,
    triggers: str,
    why: str,
    *,
    text: Severity | None = "high",
    code: Severity | None = "high",
    by_address: bool = False,
) -> Rule:
    return Rule(
        id=id,
        kind=kind,
        text=text,
        code=code,
        triggers=tuple(triggers.split("|")),
        pattern=re.compile(pattern),
        why=why,
        by_address=by_address,
    )


ADVICE: dict[Kind, str] = {
    "override": "Do not install it unless the text only quotes an attack.",
    "hidden-text": "Read the hidden text. Remove it, or do not install the skill.",
    "unicode": "Replace the characters by visible ones, and read the text again.",
    "credentials": "Find out why the skill needs them. Give it a secret of its own instead: apex secrets.",
    "remote-code": "Read what is downloaded, and put a fixed copy into the skill.",
    "exfiltration": "Find out what is sent, and to whom. Grant the skill no network access that it does not need.",
    "persistence": "Remove the change, or make it yourself after reading it.",
    "obfuscation": "Decode it and read it. Replace it by readable code.",
    "binary": "Build the program from its source, or install it as a package.",
    "link": "Replace the link by a copy of the file.",
    "deception": "Do not install it, unless you know why the user must not see this.",
    "prerequisite": "Do not run the program. Get it from its vendor or a package manager.",
}

_KEY_FILES = (
    r"\.aws[/\\\"', ]{1,5}credentials|\.config[/\\]gcloud|application_default_credentials|\.azure[/\\](?:accesstokens|msal)|"
    r"\.kube[/\\]config|\.docker[/\\]config\.json|\.npmrc|\.pypirc|\.netrc|\.git-credentials|\.config[/\\]gh[/\\]hosts|"
    r"\.gnupg|wallet\.dat|\.config[/\\]solana[/\\]id\.json|\.ethereum[/\\]keystore|\.claude[/\\]\.credentials|"
    r"\.codex[/\\]auth\.json|\.openclaw[/\\](?:openclaw\.json|credentials|\.env)|/etc/shadow|\.(?:bash|zsh)_history|"
    r"\.ssh[/\\\"', )+]{1,8}(?:id_[a-z0-9]{2,10}(?!\.pub|[a-z0-9]{0,10}\.pub)|\*)|\.ssh/?[\"'`]?\s{0,3}(?:folder|directory|\||&|;)"
)
_READ = (
    r"\b(?:cat|read|reads|reading|open|copy|cp|tar|zip|base64|upload|send|include|print|collect|type|get-content|scp|"
    r"readfile(?:sync)?|read_text|read_bytes|slurp|gather|harvest|find|grep|fetch|extract|check|load|dump|list)\b"
)
_FETCH = r"(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod)\b"
_SHELLS = (
    r"(?:sudo\s{1,4}(?:-[a-z]{1,4}\s{1,4})?)?(?:/usr)?(?:/bin/)?(?:env\s)?"
    r"(?:(?:(?:ba|z|da|k|fi|a)?sh|iex|invoke-expression)\b(?!-)|(?:python[0-9.]{0,4}|node|perl|ruby|php)\b(?!-|\s{1,3}-[a-z]))"
)
_COLLECTORS = (
    r"webhook\.site|requestbin|requestcatcher|burpcollaborator|\boast\.[a-z]{2,6}\b|interact\.sh|hookbin|canarytokens|"
    r"dnslog\.|ceye\.io|beeceptor|pipedream\.net|postb\.in|request\.bin"
)
_PASTES = (
    r"pastebin\.com|paste\.ee|hastebin|transfer\.sh|0x0\.st|\bfile\.io\b|\bix\.io\b|termbin\.com|glot\.io|rentry\.(?:co|org)|"
    r"anonfiles|gofile\.io|catbox\.moe|bashupload|dpaste|temp\.sh|oshi\.at"
)
_AGENT_FILES = (
    r"(?:claude|agents|gemini|soul|heartbeat)\.md|\.cursorrules|\.windsurfrules|\.cursor/rules|copilot-instructions\.md|"
    r"(?:\.|\b)mcp\.json|claude_desktop_config\.json|\.claude(?:\.json|/settings(?:\.local)?\.json|/commands|/agents|/hooks)|"
    r"\.codex/config\.toml"
)
_STARTUP_FILES = r"\.(?:bashrc|zshrc|bash_profile|zprofile|zshenv|profile)\b|config\.fish|\$profile\b"
_INDEXES = (
    r"pypi\.org|test\.pypi\.org|download\.pytorch\.org|pypi\.nvidia\.com|github\.com|files\.pythonhosted\.org|"
    r"data\.pyg\.org|flashinfer\.ai|registry\.npmjs\.org|pypi\.tuna\.tsinghua|mirrors\.|localhost|127\."
)
_SECRETS = (
    r"(?:conversations?|chat history|transcripts?|system prompt|api[ _-]?keys?|access tokens?|auth tokens?|credentials|"
    r"secrets|environment variables|env vars|passwords?|private keys?|\.env\b|memory files?|"
    r"(?:user|customer|client)(?:'?s|s')?\s(?:data|messages|files|prompts?|input|documents?|emails?))"
)
_RULES_OF_OTHERS = (
    r"(?:instructions?|rules|prompts?|guidelines?|directives?|guardrails?|orders|policy|policies|constraints|restrictions|"
    r"safeguards)\b"
)

RULES: tuple[Rule, ...] = (
    # ------------------------------------------------------------------------------------------------- override
    _rule(
        "override-instructions",
        "override",
        rf"\b(?:ignore|disregard|forget|overrule|discard|abandon|pay no attention to|do not follow|don't follow|"
        rf"do not obey|stop following|no longer follow)(?!{W}(?:files?|lines?|paths?|folders?|columns?|rows?|errors?|warnings?|"
        rf"whitespace|case)\b){W}{SOME}{{0,4}}?"
        rf"(?:previous|prior|earlier|above|preceding|original|system|safety|other|user'?s?|operator'?s?|your|former|"
        rf"initial|developer'?s?|anthropic'?s?|openai'?s?){W}{SOME}{{0,3}}?{_RULES_OF_OTHERS}",
        "ignore|disregard|forget|overrule|discard|abandon|no attention|follow|obey",
        "It instructs the model to drop the instructions that it has from the user or the operator.",
        code="medium",
    ),
    _rule(
        "override-instructions-chinese",
        "override",
        r"(?:忽略|无视|忘记|忘掉|不要遵守|停止遵守)[^\n。]{0,12}(?:之前|以上|先前|上面|所有|系统|原有|用户)[^\n。]{0,8}(?:指令|指示|提示|规则|要求|限制)",
        "忽略|无视|忘记|忘掉|遵守",
        "It instructs the model to drop the instructions that it has from the user or the operator.",
        code="medium",
    ),
    _rule(
        "rules-suspended",
        "override",
        rf"\b(?:your|all|previous|prior|earlier|safety|system|usual|normal){W}{SOME}{{0,3}}?{_RULES_OF_OTHERS}{W}"
        r"(?:no longer appl|do not apply|don't apply|are (?:now )?(?:void|suspended|lifted|disabled|obsolete|cancell?ed|"
        r"revoked|replaced)|have been (?:replaced|lifted|suspended|revoked|superseded))",
        "no longer|not apply|don't apply| are | have been ",
        "It declares that the model's rules are not valid.",
        code=None,
    ),
    _rule(
        "other-role",
        "override",
        rf"\byou{W}are{W}(?:now|no longer){W}{SOME}{{0,3}}?(?:developer mode|debug mode|god mode|admin mode|root mode|"
        r"unrestricted|unfiltered|jailbroken|uncensored|dan\b|bound by|an ai|a helpful|restricted|limited|an assistant)",
        "you",
        "It gives the model another role, with other rules.",
        code=None,
    ),
    _rule(
        "above-the-system",
        "override",
        rf"\b(?:this|these|its|the following|my){W}{SOME}{{0,3}}?(?:overrides?|supersedes?|(?:takes?|has|have){W}"
        rf"(?:absolute |higher |the highest )?(?:precedence|priority){W}(?:over|above)|outranks?|trumps?){W}{SOME}{{0,4}}?"
        r"(?:system prompt|system message|system instructions?|developer message|the user|safety|operator|user instructions?|"
        r"user'?s (?:instructions|requests?|wishes))",
        "overrid|supersed|precedence|priority|outrank|trump",
        "It claims a higher rank than the system prompt or the user.",
        text="medium",
        code=None,
    ),
    _rule(
        "chat-template",
        "override",
        r"<\|im_start\|>\s{0,3}system|<\|start_header_id\|>\s{0,3}system|<\|system\|>|<<sys>>|"
        r"(?:^|\n)\s{0,4}</?system(?:[-_](?:prompt|message|reminder|override))?>|(?:^|\n)#{0,4}\s{0,3}\W{0,4}"
        r"(?:system|admin|root|developer) (?:override|instruction update)\b",
        "<|im_start|>|<|start_header_id|>|<|system|>|<<sys>>|<system|</system|override|instruction update",
        "It imitates a message of the system.",
        text="medium",
        code=None,
    ),
    # ------------------------------------------------------------------------------------------------ deception
    _rule(
        "keep-from-user",
        "deception",
        rf"\b(?:do not|don't|never|must not|should not|shouldn't|avoid|refrain from|without|no need to){W}{SOME}{{0,2}}?"
        rf"(?:tell|telling|inform|informing|notify|notifying|alert|alerting|warn|warning|mention|mentioning|reveal|"
        rf"revealing|disclose|disclosing|report|reporting|admit|let){W}{SOME}{{0,4}}?(?:the )?(?:user|human|operator|person|"
        rf"owner|customer|anyone){W}?(?:{W}{SOME}{{0,3}}?(?:about|that|of|know|notice|see|this)\b|[.,;!\n]|$)",
        "user|human|operator|person|owner|customer|anyone",
        "It instructs the model to keep something from the user.",
        text="medium",
        code=None,
    ),
    _rule(
        "keep-this-step-secret",
        "deception",
        rf"\b(?:do not|don't|never|must not|avoid|without){W}{SOME}{{0,2}}?(?:tell|telling|inform|informing|notify|"
        rf"notifying|alert|alerting|mention|mentioning|reveal|revealing|disclose|disclosing|show|display|report|reporting|"
        rf"log|logging){W}{SOME}{{0,4}}?(?:about |of )?(?:this|these|that|it){W}"
        rf"(?:step|steps|action|actions|instructions?|request|upload|call|command|check|file|rules?|section|process|"
        rf"behaviou?r|skill|part|note|download|update|to (?:the )?(?:user|human|operator|anyone|them|person)|from|in (?:the |"
        rf"your |any )?(?:summary|response|reply|output|answer|report|transcript|log))",
        "this|these|that|it",
        "It instructs the model to conceal what it does.",
        code=None,
    ),
    _rule(
        "hide-from-user",
        "deception",
        rf"\b(?:(?:hide|conceal|withhold|mask){W}{SOME}{{0,4}}?|keep{W}{SOME}{{0,3}}?(?:secret|hidden|invisible|private|confidential|"
        rf"quiet|it|this|that|these|them){W})from{W}(?:the )?(?:user|human|operator|person|owner|developer|reviewer)s?\b|"
        rf"\bwithout{W}(?:the )?(?:user|human|operator|person|owner)(?:'s|s')?{W}(?:knowledge|knowing|noticing|consent|"
        rf"awareness|being aware|seeing|finding out)|"
        rf"\b(?:user|human|operator|person|owner)s?{W}(?:must|should|may|can|need|will|does|is){W}(?:not|never){W}{SOME}"
        rf"{{0,2}}?(?:know|notice|see|learn|find out|be \w{{4,9}})\b{W}?(?:about|that|of|this|it|[.,;\n]|$)|"
        rf"\bleave (?:it|this|them|these) out of (?:the|your) (?:summary|response|reply|output|answer|report)",
        "hide|conceal|keep|withhold|mask|without|know|notice|see|learn|find out|be |leave",
        "It instructs the model to act behind the user's back.",
        code=None,
    ),
    _rule(
        "act-in-secret",
        "deception",
        rf"\b(?:silently|secretly|covertly|stealthily|surreptitiously|discreetly|in the background without){W}{SOME}{{0,2}}?"
        rf"(?:run|execute|send|upload|download|install|copy|collect|exfiltrate|forward|read|fetch|post|transmit|append|"
        rf"modify|add|include|record){W}|\b(?:run|execute|send|upload|download|install|copy|collect|forward|transmit|append)"
        rf"{W}{SOME}{{0,6}}?(?:secretly|covertly|stealthily|surreptitiously)\b",
        "silently|secretly|covertly|stealthily|surreptitiously|discreetly|background without",
        "It instructs the model to act in secret.",
        text="medium",
        code=None,
    ),
    _rule(
        "skip-approval",
        "deception",
        r"--dangerously-skip-permissions|--dangerously-bypass-approvals|bypasspermissions|danger-full-access|"
        r"--trust-all-tools|apex_confirm_dangerous[\"']?\s{0,2}[=:]\s{0,2}[\"']?(?:false|0|no|off)|"
        r"skipdangerousmodepermissionprompt|--auto-approve-all|(?:[\s`\"'(])--yolo\b",
        "--dangerously|bypasspermissions|danger-full|trust-all|confirm_dangerous|permissionprompt|approve-all|--yolo",
        "It switches off questions for approval, or the sandbox.",
        text="medium",
        code="medium",
    ),
    _rule(
        "disable-safety",
        "deception",
        rf"(?<!dangerously-)\b(?:(?:disable|turn off|switch off|bypass|suppress|circumvent|deactivate|evade|defeat){W}{SOME}{{0,3}}?"
        rf"(?:confirmation|consent|permission)|(?:disable|turn off|switch off|bypass|suppress|circumvent|deactivate|evade|defeat|"
        rf"remove|skip){W}{SOME}{{0,3}}?(?:safety|approval|guardrail|content filter|antivirus|anti-virus|windows defender|microsoft defender|defender|"
        rf"gatekeeper|security software|endpoint protection|virus scanner|audit log))s?"
        rf"(?:{W}(?:checks?|prompts?|filters?|warnings?|questions?|dialogs?|requests?|protection|gates?|steps?|rules?|features?|"
        rf"mechanisms?|controls?|logs?|logging))?\b",
        "disable|turn off|switch off|bypass|suppress|circumvent|deactivate|evade|defeat|remove|skip",
        "It instructs the model or the user to switch off a protection.",
        text="medium",
        code=None,
    ),
    _rule(
        "disable-protection",
        "deception",
        r"set-mppreference\b[^\n]{0,60}disable|add-mppreference\b[^\n]{0,40}exclusion|spctl\s{1,3}--(?:master|global)-disable|"
        r"csrutil\s{1,3}disable|setenforce\s{1,3}0|ufw\s{1,3}disable|amsiutils|unset\s{1,3}histfile|history\s{1,3}-c\b|"
        r"histfile=/dev/null|histsize=0|netsh\s{1,3}advfirewall\s{1,3}set[^\n]{0,30}off",
        "mppreference|spctl|csrutil|setenforce|ufw|amsiutils|histfile|history|histsize|advfirewall",
        "It switches off a protection of the system, or its records.",
        text="medium",
        code="high",
    ),
    # ---------------------------------------------------------------------------------------------- credentials
    _rule(
        "reads-credentials",
        "credentials",
        rf"{_READ}[^\n]{{0,90}}?(?:{_KEY_FILES})",
        "credentials|gcloud|.azure|.kube|.docker|.npmrc|.pypirc|.netrc|hosts|.gnupg|wallet.dat|id.json|keystore|.codex|"
        ".openclaw|shadow|_history|.ssh",
        "It reads private keys, tokens or other credentials of the user.",
        text="medium",
    ),
    _rule(
        "names-credentials",
        "credentials",
        rf"(?:{_KEY_FILES})",
        "credentials|gcloud|.azure|.kube|.docker|.npmrc|.pypirc|.netrc|hosts|.gnupg|wallet.dat|id.json|keystore|.codex|"
        ".openclaw|shadow|_history|.ssh",
        "It names a file with private keys, tokens or other credentials.",
        text="low",
        code="medium",
    ),
    _rule(
        "browser-data",
        "credentials",
        r"[/\\\"']login data\b|key4\.db|\blogins\.json|cookies\.sqlite|user data[/\\]{1,2}default|cookies\.binarycookies|"
        r"(?:chrome|chromium|brave|edge|firefox)\b[^\n]{0,60}(?:saved passwords|stored passwords|login data|local state)|"
        r"(?:metamask|exodus|electrum|phantom|ledger live)\b[^\n]{0,60}(?:vault|keystore|wallet files?|seed)",
        "login data|key4.db|logins.json|cookies|user data|passwords|local state|metamask|exodus|electrum|phantom|ledger",
        "It reads passwords or cookies of a browser, or a wallet.",
        text="medium",
    ),
    _rule(
        "keychain",
        "credentials",
        r"\bsecurity\s{1,3}(?:dump-keychain|find-(?:generic|internet)-password|export\b[^\n]{0,30}keychain)|login\.keychain|"
        r"\bsecret-tool\s{1,3}(?:lookup|search)|\bcmdkey\s{1,3}/list|\bvaultcmd\b|\bmimikatz\b|credenumerate|credread[aw]?\(|"
        r"cryptunprotectdata|\bkwallet-query\b",
        "security|keychain|secret-tool|cmdkey|vaultcmd|mimikatz|cred|unprotect|kwallet",
        "It reads the system's store of passwords.",
        text="medium",
    ),
    _rule(
        "environment-dump",
        "credentials",
        r"json\.stringify\(\s{0,3}(?:\{\s{0,3}\.\.\.)?process\.env\s{0,3}[,)}]|dumps?\(\s{0,3}(?:dict\()?\s{0,3}os\.environ\s{0,3}[,)]|"
        r"str\(\s{0,3}(?:dict\()?os\.environ|\b(?:printenv|env)\s{0,3}\|\s{0,3}(?:curl|nc|base64|gzip|openssl|xxd|wget)|"
        r"\$\((?:printenv|env)\)|`(?:printenv|env)`\s{0,3}(?:\||>)|object\.(?:entries|keys)\(\s{0,3}process\.env\s{0,3}\)|"
        r"for\s{1,3}\w{1,20}\s{0,3},\s{0,3}\w{1,20}\s{1,3}in\s{1,3}os\.environ\.items|\benv\s{0,3}>\s{0,3}/|"
        r"=\s{0,3}dict\(os\.environ\)|get-childitem\s{1,3}env:|\b(?:gci|dir|ls)\s{1,3}env:|/proc/(?:self|\d{1,6}|\*)/environ",
        "process.env|os.environ|printenv|env|environ",
        "It reads all environment variables, which often hold keys.",
        text="medium",
        code="medium",
    ),
    _rule(
        "environment-in-words",
        "credentials",
        rf"\b(?:dump|collect|gather|harvest|send|include|copy|read|print|output|list|export|capture|record|attach){W}{SOME}"
        rf"{{0,3}}?(?:all|every|entire|full|complete|whole){W}{SOME}{{0,2}}?(?:environment variables?|environment block|env vars?|"
        rf"process\.env)\b|\b(?:dump|collect|gather|harvest|send|capture|record){W}{SOME}{{0,3}}?(?:all|every|any|entire|full|complete|"
        rf"whole){W}{SOME}{{0,2}}?(?:secrets|credentials|api keys|tokens|passwords)\b",
        "environment|env|secrets|credentials|api keys|tokens|passwords",
        "It instructs the model to collect environment variables or secrets.",
        text="medium",
        code=None,
    ),
    _rule(
        "asks-for-secrets",
        "credentials",
        rf"\bask{W}{SOME}{{0,3}}?(?:for|to (?:enter|paste|provide|type|share)){W}{SOME}{{0,3}}?(?:master password|password|"
        rf"passphrase|seed phrase|recovery phrase|private key|one-time code|2fa code|otp|mnemonic|credit card|card number|"
        rf"social security)\b",
        "password|passphrase|phrase|private key|code|otp|mnemonic|card|social security",
        "It instructs the model to ask the user for a password or a private key.",
        text="medium",
        code=None,
    ),
    _rule(
        "cloud-metadata",
        "credentials",
        r"169\.254\.169\.254|metadata\.google\.internal|169\.254\.170\.2\b|100\.100\.100\.200",
        "169.254|metadata.google|100.100.100.200",
        "It asks the metadata service of a cloud, which returns credentials.",
        text="low",
        code="high",
    ),
    # ---------------------------------------------------------------------------------------------- remote code
    _rule(
        "download-to-shell",
        "remote-code",
        rf"\b{_FETCH}[^\n|]{{0,300}}\|\s{{0,4}}{_SHELLS}|"
        rf"\b(?:ba|z)?sh\s{{1,3}}<\(\s{{0,3}}{_FETCH}[^\n]{{0,200}}|\b(?:(?:ba|z)?sh\s{{1,3}}-c|eval|source|\.)\s{{1,3}}[\"']?"
        rf"(?:\$\(|`|<\()\s{{0,3}}{_FETCH}[^\n]{{0,200}}|\b(?:iex|invoke-expression)\b[^\n]{{0,40}}(?:iwr|irm|invoke-webrequest|"
        rf"invoke-restmethod|downloadstring|webclient)[^\n]{{0,200}}|downloadstring\([^\n]{{0,200}}\|\s{{0,4}}iex",
        "curl|wget|iwr|irm|invoke-|downloadstring",
        "It downloads a program and runs it unread.",
        text="medium",
        code="medium",
        by_address=True,
    ),
    _rule(
        "download-and-run",
        "remote-code",
        rf"\b(?:{_FETCH}|urlretrieve|certutil\b|bitsadmin\b|downloadfile\b)[^\n]{{0,150}}(?:&&|;|\n)[^\n]{{0,40}}(?:\n[^\n]{{0,40}})?"
        r"(?:\bchmod\s{1,3}(?:-r\s)?(?:[augo]{0,3}\+x|0?7[0-7]{2})|\bstart-process\b|\bxattr\s{1,3}-[a-z]{1,3}\b|\bos\.startfile|"
        r"\bsubprocess\.|\bos\.system|\bexecfile|\bopen\s{1,3}/tmp|(?:ba|z)?sh\s{1,3}/?(?:tmp|[\w.-]{1,40}\.sh)|"
        r"\bpython[0-9.]{0,4}\s{1,3}/tmp)",
        "curl|wget|iwr|irm|invoke-|urlretrieve|certutil|bitsadmin|downloadfile",
        "It downloads a program and runs it.",
        text="low",
        code="medium",
        by_address=True,
    ),
    _rule(
        "runs-downloaded-code",
        "remote-code",
        r"\b(?:exec|eval|compile|new function|function|vm\.run\w{0,20}|runinnewcontext|importlib\.\w{1,20}|__import__|"
        r"import|loadstring|instance_eval)\s{0,2}\([^\n]{0,120}(?:urlopen|requests\.get|httpx\.get|fetch\(|axios|http\.get|"
        r"urllib\.request|download|https?://)|"
        r"(?:urlopen|requests\.get|httpx\.get|await fetch|axios\.get|http\.client)\b[\s\S]{0,300}?(?:\bexec\(|\beval\(|"
        r"\bnew function\(|\bcompile\(|\bvm\.run|\bmarshal\.loads|\bpickle\.loads|_compile\()",
        "urlopen|requests.get|httpx.get|fetch|axios|http.get|urllib.request|download|http.client",
        "It runs code that it downloads.",
        text="low",
        code="high",
    ),
    _rule(
        "remote-instructions",
        "remote-code",
        rf"\b(?:fetch|download|read|load|get|open|visit|retrieve|curl|access|browse|check){W}[^\n]{{0,80}}https?://[^\s\n]{{1,200}}"
        rf"[^\n]{{0,100}}?\b(?:follow|execute|run|obey|apply|carry out|do|perform|adopt){W}{SOME}{{0,4}}?(?:instructions?|steps|"
        rf"commands?|orders|tells|says|directives?|prompt|whatever)\b",
        "http",
        "It makes the model follow instructions of an address, which can change at any time.",
        text="medium",
        code=None,
    ),
    _rule(
        "reverse-shell",
        "remote-code",
        r"/dev/(?:tcp|udp)/[^\s]{1,80}|\b(?:nc|ncat|netcat)\b[^\n]{0,60}\s-[a-z]{0,4}[ec]\s{1,3}\S{0,20}(?:sh|cmd|powershell)|"
        r"\b(?:ba|z)?sh\s{1,3}-i\s{0,3}[>0-9&|]{1,4}|os\.dup2\([^\n]{0,40}fileno|pty\.spawn\([^\n]{0,30}sh|"
        r"socat\b[^\n]{0,80}exec:|new-object\s{1,3}system\.net\.sockets\.tcpclient|fsockopen\([^\n]{0,60}(?:exec|sh)",
        "/dev/tcp|/dev/udp|nc|ncat|netcat|sh -i|dup2|pty.spawn|socat|tcpclient|fsockopen",
        "It gives someone else control over the machine.",
        text="medium",
        code="high",
    ),
    _rule(
        "package-from-elsewhere",
        "remote-code",
        rf"\b(?:pip3?|uv pip|uv)\s{{1,3}}(?:install|add)\b[^\n]{{0,120}}?(?:\shttps?://(?!{_INDEXES})|--trusted-host)|"
        rf"\b(?:npm|pnpm|yarn)\s{{1,3}}(?:i|install|add)\b[^\n]{{0,80}}?[\s=]https?://(?!{_INDEXES})|"
        r"\bnpx\s{1,3}(?:-y\s{1,3}|--yes\s{1,3})?https?://",
        "install|add|npx|npm i",
        "It installs a package from another place than the usual index.",
        text="medium",
        code="medium",
    ),
    # --------------------------------------------------------------------------------------------- exfiltration
    _rule(
        "request-collector",
        "exfiltration",
        rf"(?:{_COLLECTORS})",
        "webhook.site|requestbin|requestcatcher|collaborator|oast|interact.sh|hookbin|canarytokens|dnslog|ceye|beeceptor|"
        "pipedream|postb.in|request.bin",
        "It uses a service that collects requests, as attackers do.",
        text="medium",
        code="high",
    ),
    _rule(
        "chat-webhook",
        "exfiltration",
        r"discord(?:app)?\.com/api/webhooks/|hooks\.slack\.com/(?:services|workflows)/|api\.telegram\.org/bot",
        "webhooks|hooks.slack|api.telegram",
        "It sends messages into a chat of someone.",
        text="low",
        code="medium",
    ),
    _rule(
        "upload-to-paste",
        "exfiltration",
        rf"\b(?:curl|wget|nc|ncat|upload|post|send|put|requests\.post|fetch)\b[^\n]{{0,160}}?(?:{_PASTES})|"
        rf"(?:{_PASTES})[^\n]{{0,80}}(?:-[ftd]\s|--upload-file|--data)",
        "paste|bin|transfer.sh|0x0.st|.io|rentry|anonfiles|gofile|catbox|bashupload|temp.sh|oshi",
        "It uploads to, or runs from, a public place for anonymous files.",
        text="medium",
        code="high",
    ),
    _rule(
        "uploads-private-files",
        "exfiltration",
        r"\b(?:curl|wget|httpie|nc|ncat|scp)\b[^\n]{0,200}?(?:-d|--data(?:-binary|-raw|-urlencode)?|-f|-t|"
        r"--upload-file|--post-file|--form|<)[\s=]{0,3}[^\n]{0,60}?(?:@?~/|\$home|\$\{home|/etc/|\$\(\s{0,3}(?:cat|env|printenv|"
        r"base64|tar|ls|history|git|whoami|hostname)|`(?:cat|env|printenv|base64)|@?\.env\b|@\.git)|"
        r"\b(?:cat|tar|env|printenv|base64|zip|gzip|history|find|git)\b[^\n]{0,120}\|\s{0,4}(?:[^\n|]{1,80}\|\s{0,4})?(?:curl|wget|nc|"
        r"ncat|openssl s_client|socat)\b[^\n]{0,120}(?:@-|-t\s{0,2}-|--upload-file|\s-d|--data|https?://|\b\d{2,5}\b)",
        "curl|wget|http|nc |ncat|scp|rsync|openssl",
        "It sends files or settings of the machine to a server.",
        text="medium",
        code="high",
    ),
    _rule(
        "dns-tunnel",
        "exfiltration",
        r"(?<![\w-])(?:dig|nslookup|host|ping|drill|resolve-dnsname)\s[^\n]{0,60}(?:\$\(|\$\{?[a-z_]{1,20}\}?\.)[^\n]{0,80}\.[a-z]{2,}|"
        r"\b(?:gethostbyname|getaddrinfo|resolve(?:4|6|txt|any)?|dns\.lookup|dns\.resolve\w{0,5}|lookup)\s{0,2}\([^\n]{0,60}"
        r"(?:\+\s{0,3}[\"'`]\.|\}\.[a-z0-9-]{1,40}\.|%s\.|format\()",
        "dig|nslookup|host|ping|drill|resolve|getaddrinfo|lookup",
        "It hides data in queries for names.",
        text="medium",
        code="high",
    ),
    _rule(
        "send-secrets",
        "exfiltration",
        rf"\b(?:send|post|upload|transmit|forward|exfiltrate|submit|leak|copy|report|e-?mail|deliver|push|pass|relay|attach|"
        rf"encode|append|add|include){W}{SOME}{{0,8}}?{_SECRETS}(?:[^\n#=]{{0,80}}?\b(?:to|at|into|via|with|using)\b[^\n#=]{{0,30}}?https?://|"
        rf"[^\n]{{0,100}}?(?:\bto (?:the |this |an? )?(?:following )?"
        rf"(?:remote |external |collection |our )?(?:url|endpoint|server|address|webhook|site|host|domain|api)\b|"
        rf"\bto [a-z0-9._-]{{1,40}}@[a-z0-9-]{{1,40}}\.[a-z]{{2,8}}|\bquery (?:string|parameter)|\bin the url\b))",
        "conversation|chat history|transcript|prompt|key|token|credential|secret|environment|env|password|data|messages|"
        "files|input|document|email|memory",
        "It instructs the model to send conversations, data of the user or secrets to someone.",
        text="medium",
        code=None,
    ),
    _rule(
        "image-with-data",
        "exfiltration",
        r"!\[[^\]\n]{0,80}\]\(\s{0,3}https?://[^)\s]{1,200}[?&/=][a-z0-9_.-]{0,30}=?(?:\{\{?[a-z_ ]{2,40}\}|<[a-z_ -]{2,40}>|"
        r"\$\{?[a-z_]{2,40}|\[[a-z_ -]{2,40}\]|%7b)",
        "![",
        "An image address with a placeholder sends what the model fills in, without a click.",
        text="medium",
        code=None,
    ),
    # ---------------------------------------------------------------------------------------------- persistence
    _rule(
        "scheduled-task",
        "persistence",
        r"\|\s{0,4}crontab\b|\bcrontab\s{1,3}(?:-\s|-$|/|<|[\w./]{1,40}\.cron)|>{1,2}\s{0,3}/etc/cron|/etc/cron\.(?:d|daily|hourly)/|"
        r"\bschtasks\s{1,3}/create|register-scheduledtask|\blaunchctl\s{1,3}(?:load|bootstrap|submit)|library/launch(?:agents|daemons)/|"
        r"\bsystemctl\s{1,3}(?:--user\s{1,3})?enable|/etc/systemd/system/\S|\.config/systemd/user/\S|currentversion\\{1,2}run\b|"
        r"start menu\\{1,2}programs\\{1,2}startup|\.config/autostart/|/etc/rc\.local|/etc/ld\.so\.preload",
        "cron|schtasks|scheduledtask|launch|systemctl|systemd|currentversion|startup|autostart|rc.local|ld.so.preload",
        "It makes a program start again and again.",
        text="low",
        code="medium",
    ),
    _rule(
        "shell-startup",
        "persistence",
        rf"(?:>>|\btee\s{{1,3}}-a|\bappend\w{{0,6}}\b|\bopen\(|\bwrite\w{{0,8}}\b|\bsed\s{{1,3}}-i|add-content)[^\n]{{0,120}}?(?:{_STARTUP_FILES})|"
        rf"(?:{_STARTUP_FILES})[^\n]{{0,40}}(?:[\"']a\+?[\"']|appendfile)",
        ".bashrc|.zshrc|_profile|.zprofile|.zshenv|.profile|config.fish|$profile",
        "It changes what each new shell runs.",
        text="low",
        code="high",
    ),
    _rule(
        "git-hooks",
        "persistence",
        r"(?:>{1,2}|\bcp\b|\bmv\b|\btee\b|\bln\b|\bwrite\w{0,8}\b|\bopen\(|\binstall\b|\bcreate\b|\badd\b|\bchmod\b)[^\n]{0,80}"
        r"\.git[/\\\"', ]{1,5}hooks\b|core\.hookspath|init\.templatedir",
        "hooks|templatedir",
        "It adds a hook, which git runs later.",
        text="low",
        code="medium",
    ),
    _rule(
        "agent-configuration",
        "persistence",
        rf"(?:\b(?:append|add|adds|write|writes|insert|inject|modify|edit|update|overwrite|replace|prepend|create|register|save|put|"
        rf"copy|paste)\b|>>|\btee\b|writefile\w{{0,4}}\(|open\(|appendfile)[^\n]{{0,120}}?(?:~|\$home|%userprofile%|home\(\)|homedir\(\)|"
        rf"users?'?s? (?:home|global)|global)[^\n]{{0,30}}?(?:{_AGENT_FILES})",
        "~|home|user|global",
        "It changes the configuration of an agent for all projects of the user.",
        text="medium",
        code="high",
    ),
    _rule(
        "agent-configuration-in-project",
        "persistence",
        rf"(?:\b(?:append|add|write|insert|inject|modify|overwrite|prepend)\b|>>|\btee\b|writefile\w{{0,4}}\(|open\(|appendfile)[^\n]{{0,80}}?"
        rf"(?:{_AGENT_FILES})",
        "claude|agents.md|gemini.md|soul.md|heartbeat.md|rules|instructions.md|mcp.json|.codex",
        "It changes files that agents read as instructions.",
        text="low",
        code="medium",
    ),
    _rule(
        "names-agent-configuration",
        "persistence",
        rf"(?:~|\$home|%userprofile%|home\(\)|homedir\(\))[^\n]{{0,30}}?(?:{_AGENT_FILES})",
        "claude|agents.md|gemini.md|soul.md|heartbeat.md|rules|instructions.md|mcp.json|.codex",
        "It names the configuration of an agent for all projects of the user.",
        text=None,
        code="medium",
    ),
    _rule(
        "lasting-instructions",
        "persistence",
        rf"\b(?:remember|save|store|add|append|write|persist|keep|put){W}{SOME}{{0,10}}?(?:{_AGENT_FILES}|memory|memories|"
        rf"long-term memory|configuration){W}?[^\n]{{0,60}}?\b(?:every (?:session|conversation|chat|project)|all future|future sessions?|"
        rf"future conversations?|permanently|always active|survives?|from now on)\b",
        "session|conversation|every|future|permanently|always active|surviv|from now on",
        "It makes instructions last beyond the use of the skill.",
        text="medium",
        code=None,
    ),
    _rule(
        "login-access",
        "persistence",
        r"authorized_keys|/etc/sudoers|nopasswd\s{0,2}:|\buseradd\b[^\n]{0,40}-o|\bchmod\s{1,3}[u+]{0,2}\+?s\b|\bchmod\s{1,3}4[0-7]{3}\b|"
        r"net\s{1,3}localgroup\s{1,3}administrators",
        "authorized_keys|sudoers|nopasswd|useradd|chmod|localgroup",
        "It opens a way into the machine, or to more rights.",
        text="low",
        code="high",
    ),
    # ---------------------------------------------------------------------------------------------- obfuscation
    _rule(
        "encoded-command",
        "obfuscation",
        rf"base64\s{{1,3}}(?:-d|--decode|-di)\b[^\n|]{{0,60}}\|\s{{0,4}}(?:[^\n|]{{1,40}}\|\s{{0,4}})?{_SHELLS}|"
        rf"\b(?:eval|bash\s{{1,3}}-c|sh\s{{1,3}}-c|source)\s{{1,3}}[\"']?(?:\$\(|`|<\()[^\n]{{0,200}}base64\s{{1,3}}-{{1,2}}d|"
        r"\b(?:xxd\s{1,3}-r|rev|tr\s[^\n|]{1,60}|openssl\s{1,3}(?:enc|base64)\s[^\n|]{0,80}|gunzip|zcat)[^\n|]{0,40}\|\s{0,4}(?:ba|z)?sh\b|"
        r"(?:^|\s)-e(?:nc|ncodedcommand|c)?\s{1,3}[a-z0-9+/=]{40}|frombase64string\(",
        "base64|xxd|rev|tr |openssl|gunzip|zcat|-e|frombase64",
        "It decodes a command and runs it, which hides what it does.",
    ),
    _rule(
        "encoded-code",
        "obfuscation",
        r"\b(?:exec|eval|compile|new function|function|loads|system|popen|run|check_output|execsync|require|runinthiscontext)\s{0,2}\([^\n]{0,80}?"
        r"(?:b64decode|b32decode|b85decode|a85decode|decompress|fromhex|unhexlify|rot.?13|marshal\.loads|\batob\b|"
        r"buffer\.from\([^\n]{0,2000}?(?:base64|hex)|unescape\(|fromcharcode|decodeuricomponent|codecs\.decode|bytes\.fromhex|"
        r"\.join\(\s{0,2}(?:chr|map\(chr)|chr\(\d|\[::-1\])|\bmarshal\.loads\(|(?:chr\(\d{1,3}\)\s{0,2}\+\s{0,2}){3}|"
        r"getattr\(\s{0,2}__import__|__import__\(\s{0,2}[\"'][a-z]{1,12}[\"']\s{0,2}\+|getattr\(\s{0,2}builtins|__builtins__\s{0,2}\[|"
        r"globals\(\)\s{0,2}\[\s{0,2}[\"'][^\n]{0,20}\+",
        "decode|decompress|fromhex|unhexlify|rot|marshal|atob|buffer.from|unescape|fromcharcode|.join|chr(|[::-1]|__import__|"
        "builtins|globals",
        "It decodes code and runs it, which hides what it does.",
        text="medium",
    ),
    _rule(
        "escaped-text",
        "obfuscation",
        r"(?:\\x[0-9a-f]{2}){24}|(?:\\u00[0-9a-f]{2}){16}|(?:_0x[0-9a-f]{4,6}[^\n]{1,80}?){6}|(?:0x[0-9a-f]{2}\s{0,2},\s{0,2}){64}",
        "\\x|\\u00|_0x|0x",
        "It writes text as numbers, which hides what it does.",
        text="medium",
        code="medium",
    ),
    # --------------------------------------------------------------------------------------------- prerequisite
    _rule(
        "archive-with-password",
        "prerequisite",
        r"(?:\.zip|\.rar|\.7z|\barchive|\bunzip|\bunpack|\b7z)\b[^\n]{0,120}?\b(?:password|passwd|passcode|pass|pwd)\b\s{0,3}[:=(`\"'*](?!//)|"
        r"(?:extract|unzip|unpack|open|decrypt)\b[^\n]{0,80}?(?:with|using)\b[^\n]{0,20}\bpass(?:word|code|phrase)?\b\s{0,3}[:=`\"'*]|"
        r"\bpass(?:word|code)\b[^\n]{0,40}\b(?:to (?:extract|unzip|unpack)|(?:of|for) the (?:archive|zip))\b|\bunzip\s{1,3}-p\s{0,3}\S|\b7z\s{1,3}[xe]\s[^\n]{0,60}-p\S",
        "pass|pwd|unzip|7z",
        "An archive with a password cannot be checked by a virus scanner; malware is delivered so.",
        text="high",
        code="medium",
    ),
    _rule(
        "download-a-program",
        "prerequisite",
        r"\b(?:download|grab|obtain|get|fetch)\b[^\n]{0,200}?(?:\.zip|\.exe|\.dmg|\.pkg|\.msi|\.rar|\.7z|\.scr|\.appimage|\.bat|\.ps1|"
        r"executable|installer)\b[^\n]{0,200}?\b(?:run|execute|launch|double-click|start)\b",
        "download|grab|obtain|get|fetch",
        "It makes the user run a downloaded program before the skill works.",
        text="medium",
        code=None,
    ),
    _rule(
        "paste-into-terminal",
        "prerequisite",
        rf"\b(?:copy|paste|enter|type|run)\b[^\n]{{0,120}}(?:{_PASTES})[^\n]{{0,120}}\b(?:terminal|powershell|command prompt|shell|console)\b|"
        rf"(?:{_PASTES})[^\n]{{0,160}}\b(?:paste|copy|run|execute)\b[^\n]{{0,80}}\b(?:terminal|powershell|command prompt|shell|console)\b|"
        r"\bpaste\b[^\n]{0,60}\b(?:into|in)\b[^\n]{0,30}\b(?:terminal|powershell|command prompt)\b[^\n]{0,80}(?:before|first|required|"
        r"otherwise|will not work|won't work)",
        "paste|bin|transfer.sh|0x0.st|.io|rentry|gofile",
        "It makes the user run a command from a public place for anonymous text.",
        text="high",
        code=None,
    ),
)
QUOTING = re.compile(
    r"\b(?:injections?|injected|jailbreak\w{0,4}|attacks?|attackers?|malicious|malware|detect\w{0,5}|e\.g|vulnerab\w{1,8}|"
    r"red flags?|suspicious|phishing|scan(?:s|ner|ning)?|threats?|pentest\w{0,4}|exploit\w{0,6}|ctf|flag(?:s|ged|ging)?|refuse|reject|"
    r"block(?:s|ed)?|untrusted|adversar\w{1,5}|dangerous|anti-?patterns?|forbidden|prohibited|bad:|wrong|red team\w{0,4}|payloads?|"
    r"look for|watch for|such as|risk(?:s|y)?|patterns?|prevent\w{0,4}|protect\w{0,4}|insecure|unsafe|violat\w{1,6}|hostile|"
    r"poison\w{0,4}|tamper\w{0,4}|spoof\w{0,4}|never (?:run|use|read|pipe|commit|do|follow|obey|execute|access)|"
    r"do not (?:run|use|read|pipe|commit|follow|obey|execute|access)|don't (?:run|use|read|pipe|commit|follow|obey|execute|access)|"
    r"attempts?|tries to|trying to|warning signs?|audit\w{0,4}|security (?:review|check|rule))\b"
)
"""Words around a match that show that an attack is only described, or forbidden."""
INSTRUCTION = re.compile(
    r"\b(?:assistant|agents?|ai\b|llms?|models?|claude|chatgpt|gpt|copilot|codex|gemini|bot)\b[^\n]{0,60}?\b(?:must|should|shall|always|"
    r"never|execute|run|read|send|fetch|ignore|upload|include|append|download|call|do not|don't|before|when|obey|follow|open)\b|"
    r"\b(?:you must|you should|always (?:run|execute|send|include|call|read|add)|first (?:run|execute|read|send)|"
    r"(?:run|execute|send|upload|fetch|download|read|append|include|open)\s{1,3}(?:the |all |any |this |contents? of |`|~/|https?:|scripts/|/)|"
    r"do not (?:tell|mention|reveal|show)|ignore (?:the|all|any|previous|prior)|instead of|system prompt)"
)
"""A text that instructs a model."""
DECODED = re.compile(
    r"\b(?:curl|wget|bash|/bin/sh|powershell|exec\(|eval\(|import (?:os|socket|subprocess)|os\.system|subprocess|nc -|rm -rf|chmod|"
    r"ignore (?:all|previous|the)|child_process|invoke-|iex|/dev/tcp|base64 -d|urlopen|requests\.(?:get|post))"
)
"""What a decoded text must contain to be a command or an instruction."""
