-- SPDX-License-Identifier: Apache-2.0
-- Why: an app completes its entry in its own transaction; and reserve tells an entry that such a transaction has locked from a store that does not answer.
-- Locks: none; everything here is new.

-- The header of an answer as the entry keeps it: names in canonical form, values as lists. Refuses what a replay must not or cannot have.
CREATE FUNCTION {{schema}}.header_of(headers jsonb) RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    field  record;
    name   text;
    lines  jsonb;
    result jsonb := '{}';
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are no JSON object' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Write {"Location": "/payments/1"}, with a list of strings where a field has several lines.';
    END IF;
    FOR field IN SELECT * FROM jsonb_each(headers) LOOP
        IF field.key COLLATE "C" !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]{1,128}$' THEN
            RAISE EXCEPTION 'a name in headers is no field name' USING ERRCODE = 'invalid_parameter_value', HINT = 'Write names such as Content-Type.';
        END IF;
        SELECT string_agg(upper(left(part, 1) COLLATE "C") || lower(substr(part, 2) COLLATE "C"), '-' ORDER BY place) INTO name
        FROM string_to_table(field.key, '-') WITH ORDINALITY AS p (part, place);
        IF name ~ '^(Set-Cookie2?|Content-Length|Date|Age|Idempotent-Replayed|Connection|Keep-Alive|Proxy-Authenticate|Proxy-Authorization'
            '|Proxy-Connection|Te|Trailer|Transfer-Encoding|Upgrade|(Access-Control-|Ratelimit|X-Ratelimit).*)$' THEN
            RAISE EXCEPTION 'header % cannot be recorded', name USING ERRCODE = 'invalid_parameter_value',
                HINT = 'It speaks of one exchange or one caller, and would be wrong in a replay: leave it out.';
        END IF;
        lines := CASE WHEN jsonb_typeof(field.value) = 'array' THEN field.value ELSE jsonb_build_array(field.value) END;
        IF EXISTS (SELECT FROM jsonb_array_elements(lines) l WHERE jsonb_typeof(l) <> 'string' OR (l #>> '{}') COLLATE "C" !~ '^[ -~\t]*$') THEN
            RAISE EXCEPTION 'header % has a value that is no printable ASCII text', name USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Values are strings, or lists of strings.';
        END IF;
        IF result ? name THEN
            RAISE EXCEPTION 'header % is there twice', name USING ERRCODE = 'invalid_parameter_value', HINT = 'Names mind no case: write one, with a list.';
        END IF;
        result := result || jsonb_build_object(name, lines);
    END LOOP;
    RETURN CASE WHEN result <> '{}' THEN convert_to(result::text, 'UTF8') END;
END
$$;

-- complete records the answer of the request that the caller is executing, in the caller's own transaction: both are committed, or neither.
-- reservation is what the app got in the header Idempotency-Reservation. Whoever does not hold it can guess neither it nor any other.
--
-- IK003: the reservation is not held any more. IK004: an earlier transaction has recorded the answer. The caller has to roll back on either, as
-- PostgreSQL makes it do unless it catches the error. Repeated in one transaction it keeps the first answer.
CREATE FUNCTION {{schema}}.complete(reservation text, status integer, headers jsonb, body bytea) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts    text[];
    relation text;
BEGIN
    IF coalesce(reservation, '') !~ '^[0-9a-f]{32}(\.[A-Za-z0-9+/]+=*){3}$' OR length(reservation) > 8192 THEN
        RAISE EXCEPTION 'not a reservation' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Pass on the header Idempotency-Reservation as it came. A request without one is not enforced: do not complete it.';
    END IF;
    IF status IS NULL OR status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'status is not between 200 and 599' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF length(body) > 67108864 THEN
        RAISE EXCEPTION 'body is longer than 64 MiB' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT array_agg(convert_from(decode(part, 'base64'), 'UTF8') ORDER BY place) INTO parts
    FROM string_to_table(substr(reservation, 34), '.') WITH ORDINALITY AS p (part, place);
    SELECT k.relation INTO relation FROM {{schema}}.keyspaces k WHERE k.name = parts[1];
    IF relation IS NULL THEN
        RAISE EXCEPTION 'the reservation is of another database' USING ERRCODE = 'IK003',
            HINT = 'The app has to use the database, and the schema, that the policy names as its store.';
    END IF;
    EXECUTE format('SELECT {{schema}}.%I($1, $2, $3, $4, $5, $6)', relation || '_record')
    USING parts[2], parts[3], left(reservation, 32)::uuid, status, {{schema}}.header_of(coalesce(headers, '{}')), body;
END
$$;

-- The same for a body of text, in UTF-8. A literal without a type is one.
CREATE FUNCTION {{schema}}.complete(reservation text, status integer, headers jsonb, body text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT {{schema}}.complete(reservation, status, headers, convert_to(body, 'UTF8')) $$;

-- lock_entry waits for an entry's lock, and says whether it got it. Our own calls keep theirs for milliseconds; one that is kept for longer belongs to a
-- transaction of an app, which has recorded its answer and not yet ended.
CREATE FUNCTION {{schema}}.lock_entry(lock bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(lock);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

REVOKE ALL ON FUNCTION
    {{schema}}.header_of(jsonb), {{schema}}.complete(text, integer, jsonb, bytea), {{schema}}.complete(text, integer, jsonb, text),
    {{schema}}.lock_entry(bigint)
FROM PUBLIC;
