-- Repairs one budget meter from what the records say was spent. Idempotent: the difference is taken in here.
-- KEYS: alive, meter. ARGV: spent according to the records, this server's time when they were read (ms), 1 if the
-- records are known to be complete up to a while ago.
-- Answer: state, total, correction, records kept. BUSY: nothing was written, a process may still bring settlements.

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local TTL, SETTLED_MARGIN, QUIET = 60000, 2000, 60000
local recorded, read_at, is_complete = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local function text(number)
  return string.format('%.0f', number)
end

local base, changed, kept = nil, 0, 0
local kept_settled, folded, ended = 0, 0, {}
local fields = redis.call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do
  local name = fields[i]
  if name == 'b' then
    base = tonumber(fields[i + 1])
  elseif name == 't' then
    changed = tonumber(fields[i + 1])
  else
    local s, h = string.match(fields[i + 1], '^(%-?%d+) (%-?%d+)$')
    local life = redis.call('HGET', KEYS[1], name)
    local last_seen, mark
    if life then
      last_seen, mark = string.match(life, '^%d+ (%d+) (%d+)$')
      last_seen, mark = tonumber(last_seen), tonumber(mark)
    end
    if mark and mark >= read_at + SETTLED_MARGIN then
      kept, kept_settled = kept + 1, kept_settled + tonumber(s)
    elseif not last_seen or last_seen + TTL <= now or tonumber(h) == 0 then
      folded = folded + tonumber(s)  -- a live owner will be told to join again; with nothing held it cannot have spent
      ended[#ended + 1] = name
    else
      return {'BUSY', 0, 0, 0}
    end
  end
end
if not base then return {'MISSING', 0, 0, 0} end

local corrected = base + folded
local total = corrected + kept_settled
local correction = 0
if recorded > total then
  correction = recorded - total  -- the records were read first, the meter later: surely missing
elseif kept == 0 and changed + QUIET <= read_at and is_complete then
  correction = recorded - total  -- quiet: exact, downwards too
end
if #ended > 0 then redis.call('HDEL', KEYS[2], unpack(ended)) end
if folded ~= 0 or correction ~= 0 then redis.call('HSET', KEYS[2], 'b', text(corrected + correction)) end
return {'OK', total + correction, correction, kept}
