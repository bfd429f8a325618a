-- migrate:up

-- Limits and budgets, and where alerts about budgets go. Owned by admin; budget-alert reads budgets and webhooks.

-- As contracts.catalogue.Limits: a JSON object of the limits that are set. One that is absent is none, 0 lets nothing
-- pass. `default_key_limits` are given to a new key for which none were stated; `end_user_limits` bind each end user.
ALTER TABLE tenants
    ADD COLUMN limits jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN end_user_limits jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN default_key_limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE departments ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE teams ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE keys ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE providers ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
ALTER TABLE models ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';

-- `tenant` is that of the scope; none: the budget belongs to the platform. `counts_since`: when scope, period, zone or
-- weekday last changed. `first_weekday`: 0 is Monday.
CREATE TABLE budgets (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" REFERENCES tenants,
    name text NOT NULL,
    scope text NOT NULL CHECK (scope IN ('key', 'team', 'department', 'tenant', 'provider', 'model')),
    scope_id text COLLATE "C" NOT NULL,
    limit_nano_usd bigint NOT NULL CHECK (limit_nano_usd BETWEEN 0 AND 9000000000000000),
    period text NOT NULL CHECK (period IN ('hour', 'day', 'week', 'month', 'quarter', 'year')),
    first_weekday smallint NOT NULL CHECK (first_weekday BETWEEN 0 AND 6),
    time_zone text NOT NULL,
    thresholds_percent integer[] NOT NULL,
    is_soft boolean NOT NULL,
    enabled boolean NOT NULL,
    counts_since timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE INDEX budgets_scope_id ON budgets (scope_id) WHERE deleted_at IS NULL;
CREATE INDEX budgets_tenant ON budgets (tenant) WHERE deleted_at IS NULL;

-- Where a tenant's alerts are delivered; without a tenant, those of the platform.
CREATE TABLE webhook_endpoints (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" REFERENCES tenants,
    name text NOT NULL,
    url text NOT NULL,
    format text NOT NULL CHECK (format IN ('json', 'slack')),
    enabled boolean NOT NULL,
    allow_private_addresses boolean NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX webhook_endpoints_name ON webhook_endpoints (tenant, name) NULLS NOT DISTINCT
    WHERE deleted_at IS NULL;

-- What deliveries are signed with: every secret of the endpoint that has not expired. Sealed (AES-256-GCM, the
-- endpoint's id as associated data). An endpoint has one without `expires_at`; the others were replaced and end then.
CREATE TABLE webhook_secrets (
    id text COLLATE "C" PRIMARY KEY,
    endpoint text COLLATE "C" NOT NULL REFERENCES webhook_endpoints,
    secret_key_id text NOT NULL,
    secret_nonce bytea NOT NULL,
    secret_ciphertext bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz
);
CREATE INDEX webhook_secrets_endpoint ON webhook_secrets (endpoint);
CREATE UNIQUE INDEX webhook_secrets_present ON webhook_secrets (endpoint) WHERE expires_at IS NULL;

-- migrate:down

DROP TABLE webhook_secrets, webhook_endpoints, budgets;
ALTER TABLE models DROP COLUMN limits;
ALTER TABLE providers DROP COLUMN limits;
ALTER TABLE keys DROP COLUMN limits;
ALTER TABLE teams DROP COLUMN limits;
ALTER TABLE departments DROP COLUMN limits;
ALTER TABLE tenants DROP COLUMN default_key_limits, DROP COLUMN end_user_limits, DROP COLUMN limits;
